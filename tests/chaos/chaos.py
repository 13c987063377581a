"""Faults injected into real runs of this machine: kills and stops of samplers, ranks, buffer and driver in every phase."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from campaign import Disturbance
from fault_plan import KINDS, PHASES, TARGETS, WORLDS, draw, meets
from fault_report import Campaign, tables

EXAMPLES = """examples:
  make chaos                                            # 200 faults
  make chaos ARGS="--seed 2 --faults 40 --worlds ranks"
  make chaos ARGS="--set weightSync.transport=objectStore --phases publish"
  make chaos ARGS="--kinds stop --targets rank --faults 6"
  make chaos ARGS="--seconds 180 --out runs/chaos"      # again and again: each call goes on after the last one's faults
  make chaos ARGS="--worlds collective,delta,adapter,ipc,background --phases publish,checkpoint --faults 80 --out runs/ways"
  make chaos ARGS="--worlds collocated,hybrid,stored --faults 60 --out runs/shared"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; 0: everything was as it must be."""
    args = _parser().parse_args(arguments)
    file = args.out / "results.json"
    wanted = {
        **{"seed": args.seed, "worlds": args.worlds, "kinds": args.kinds, "targets": args.targets},
        **{"phases": args.phases, "per-run": args.per_run, "set": args.set, "commit": _commit()},
    }
    campaign = Campaign.from_json(json.loads(file.read_text())) if file.exists() else Campaign(wanted)
    if other := campaign.differences(wanted):
        print(
            f"chaos: {file} is of another plan ({other}); ask for that one, give another --out, or remove it",
            file=sys.stderr,
        )
        return 2
    if idle := [one for one in args.worlds if not any(meets(one, phase) for phase in args.phases)]:
        print(
            f"chaos: --phases: runs of {', '.join(idle)} come to none of {', '.join(args.phases)}; leave these --worlds "
            "out, or give more --phases",
            file=sys.stderr,
        )
        return 2
    faults = draw(
        args.seed,
        args.faults,
        worlds=args.worlds,
        kinds=args.kinds,
        targets=args.targets,
        phases=args.phases,
        chapter=args.per_run,
    )
    done = {one.number for one in campaign.results}
    left = [fault for fault in faults if fault.number not in done]
    if not left:
        print(
            f"chaos: nothing left to do: {file} has all {len(faults)} faults; give more --faults, another --out, or "
            "remove it",
            file=sys.stderr,
        )
        return 2
    began, earlier = time.monotonic(), len(done)

    def tell(text: str) -> None:
        now, seconds = len(campaign.results), time.monotonic() - began
        rest = f", {seconds / (now - earlier) * (len(faults) - now):.0f} s left" if now > earlier else ""
        print(f"[{now}/{len(faults)}{rest}] {text}", flush=True)

    def keep() -> None:
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(campaign.to_json(), indent=1) + "\n")
        temporary.replace(file)
        (args.out / "results.md").write_text(tables(campaign) + "\n")

    args.out.mkdir(parents=True, exist_ok=True)
    Disturbance(campaign, args.set, args.out, args.seconds, tell, keep).inject(
        left, args.out / f"from-{earlier + 1}", chapter=args.per_run, at_once=args.at_once
    )
    print(
        f"\n{tables(campaign)}\n\n{len(campaign.results)} faults, now {time.monotonic() - began:.0f} s; {file}"
    )
    for problem in campaign.problems:
        print(f"NOT AS IT MUST BE: {problem}")
    return 1 if campaign.problems else 0


def _commit() -> str:
    """Of the code that is tried, with a mark where files are changed; where there is no repository: unknown."""
    ask = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        found = subprocess.run(ask, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found {text}, allowed: a whole number from 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chaos",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def several(name: str, allowed: Sequence[str], what: str) -> None:
        def chosen(text: str) -> list[str]:
            found = text.split(",")
            if not set(found) <= set(allowed):
                raise argparse.ArgumentTypeError(f"found {text}, allowed: {', '.join(allowed)}")
            return found

        parser.add_argument(
            f"--{name}",
            type=chosen,
            default=list(allowed),
            metavar="A,B",
            help=f"{what}: {', '.join(allowed)}",
        )

    parser.add_argument(
        "--seed", type=int, default=1, help="of which the plan of faults is drawn (default: 1)"
    )
    parser.add_argument("--faults", type=_count, default=200, help="how many the plan has (default: 200)")
    several("worlds", list(WORLDS), "kinds of runs")
    several("kinds", KINDS, "kill: SIGKILL, stop: SIGSTOP, pause: SIGSTOP and soon SIGCONT")
    several("targets", TARGETS, "which processes")
    several("phases", PHASES, "when")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of every run, as of rltrain run",
    )
    parser.add_argument("--per-run", type=_count, default=10, help="faults in a row of one run (default: 10)")
    parser.add_argument(
        "--at-once", type=_count, default=2, help="so many runs at the same time (default: 2)"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fault begins later than so")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"), help="folder (default: runs/chaos)")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no run stays behind
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
