"""`rltrain compare`: the gate of a policy service, by hand."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_cli.options import Subparsers, new_parser

if TYPE_CHECKING:
    from rl_serve.gate.report import Comparison, Report

_DESCRIPTION = """\
Says whether CANDIDATE may be served in place of SERVING, as the gate of a policy service does: both answer the run's
held-out prompts and the questions of a probe greedily, and the candidate is refused where the interval of the difference
says that it is worse by more than --max-drop; it may not be much slower, and the engine's log-probabilities must be those
of the model. Every byte of a checkpoint is compared with its manifest first. Held-out prompts come from run.yaml of the run
folder that CANDIDATE lies in, or of --run. Without SERVING only what needs no comparison is looked at (--min-score,
--max-difference). The exit code is 0 where it passes, 1 where it is refused or cannot be compared, 2 for wrong input."""

_EXAMPLES = """\
  rltrain compare runs/new/checkpoints/step-00000020 runs/new/checkpoints/step-00000010
  rltrain compare runs/new runs/old --probe questions.jsonl --scorer number --min-score 0.8
  rltrain compare runs/new --probe questions.jsonl --min-score 0.8 --no-held-out
  (a line of questions.jsonl: {"prompt": "6 * 7 =", "answer": "42"}, or "messages" in place of "prompt")
"""

_NEEDED = ("torch", "ray")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "compare", _compare, _DESCRIPTION, _EXAMPLES)
    places = "checkpoint, run folder, model folder, hub id or s3://..."
    parser.add_argument("candidate", metavar="CANDIDATE", help=places)
    parser.add_argument("serving", metavar="SERVING", nargs="?", help=places)
    held = parser.add_argument_group("held-out prompts")
    held.add_argument("--run", type=Path, metavar="DIR", help="run folder (default: the candidate's)")
    held.add_argument(
        "--code",
        type=Path,
        metavar="DIR",
        help="folder of the run's file, with its data and environments (default: the working directory)",
    )
    held.add_argument("--no-held-out", action="store_true", help="leave them out")
    held.add_argument("--samples", default=None, metavar="N", help="at most that many (default: 128)")
    held.add_argument("--max-drop", metavar="SHARE", help="how much worse it may be, 0 to 1 (default: 0)")
    held.add_argument(
        "--confidence", metavar="LEVEL", help="of the interval, also the probe's (default: 0.95)"
    )
    probe = parser.add_argument_group("probe")
    probe.add_argument("--probe", type=Path, metavar="FILE", help="JSONL file with questions and answers")
    probe.add_argument("--scorer", default="exact", help="exact, contains or number (default: exact)")
    probe.add_argument("--probe-max-drop", metavar="SHARE", help="as --max-drop (default: 0.05)")
    probe.add_argument("--min-score", metavar="SHARE", help="least share of right answers (default: none)")
    rest = parser.add_argument_group("engine")
    rest.add_argument("--max-ratio", metavar="TIMES", help="time for a token, against SERVING (default: 1.5)")
    rest.add_argument(
        "--max-difference", metavar="X", help="of log-probabilities, on average (default: 0.05)"
    )
    rest.add_argument(
        "--engine", choices=("torch", "vllm"), default="torch", help="what answers (default: torch)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800.0, metavar="SECONDS", help="for all of it (default: 1800)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _compare(args: argparse.Namespace) -> int:
    for module in _NEEDED:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    from rl_api.errors import InvalidConfig
    from rl_serve.gate.criteria import parse_gate
    from rl_serve.gate.evaluate import evaluate
    from rl_serve.gate.probe import read_probe

    if not args.timeout > 0:
        raise InvalidConfig(f"--timeout: found {args.timeout:g}, allowed: seconds above 0")
    confidence = _number(args.confidence)
    asked = {
        "latency": {"maxRatio": _number(args.max_ratio)} if args.serving else None,
        "agreement": {"maxDifference": _number(args.max_difference)},
    }
    if not args.no_held_out:
        asked["heldOut"] = {
            "samples": _number(args.samples),
            "maxDrop": _number(args.max_drop),
            "confidence": confidence,
        }
    if args.probe:
        asked["probe"] = {
            "maxDrop": _number(args.probe_max_drop),
            "minScore": _number(args.min_score),
            "confidence": confidence,
        }
    report = evaluate(
        args.candidate,
        args.serving,
        parse_gate(asked),
        read_probe(args.probe, args.scorer) if args.probe else None,
        run=args.run,
        code=args.code or Path.cwd(),
        timeout=args.timeout,
        engine=args.engine,
        tell=_tell,
    )
    print(json.dumps(report.to_json(), indent=2) if args.json else "\n".join(table(report)))
    return 0 if report.passed else 1


def table(report: Report) -> list[str]:
    """The report, for people: a line for each part that was measured, and the verdict."""
    rows: list[tuple[str, ...]] = [("", "candidate", "serving", "difference", "interval", "n")]
    rows += _shares("held-out", report.held_out)
    rows += _shares("probe", report.probe)
    if found := report.latency:
        serving = "" if found.serving is None else f"{found.serving * 1000:.3g} ms"
        ratio = "" if found.ratio is None else f"{found.ratio:.2f} times"
        rows.append(("latency", f"{found.candidate * 1000:.3g} ms", serving, ratio, "", ""))
    if report.agreement:
        rows.append(("agreement", f"{report.agreement.mean:.2g}", "", "", "", str(report.agreement.n)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [
        *(lines if len(rows) > 1 else []),
        f"{'passed' if report.passed else 'refused'}: {report.message}",
    ]


def _shares(name: str, found: Comparison | None) -> list[tuple[str, ...]]:
    if found is None:
        return []
    if found.serving is None:
        return [(name, f"{found.candidate:.3f}", "", "", "", str(found.n))]
    return [
        (
            name,
            f"{found.candidate:.3f}",
            f"{found.serving:.3f}",
            f"{found.difference:+.3f}",
            f"{found.low:+.3f} to {found.high:+.3f}",
            str(found.n),
        )
    ]


def _number(text: str | None) -> float | str | None:
    """A number as the gate's fields have it; what is none is left to their check."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _tell(text: str) -> None:
    from rl_api.printable import printable

    print(printable(text), file=sys.stderr, flush=True)
