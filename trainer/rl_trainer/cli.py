"""The command `rltrain`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rl_api import RLTrainingRun, load_run
from rl_api.errors import (
    ActorDied,
    CheckpointError,
    DeadlineExceeded,
    Interrupted,
    InvalidConfig,
    RLTrainError,
)
from rl_api.planner.profile import RunProfile, load_profile
from rl_api.planner.room import why_not_planned
from rl_api.printable import printable_lines
from rl_trainer.checkpoint.inspection import inspect_folder, inspect_remote, table, told
from rl_trainer.error_text import RESUME_HINT, STOPPED_AT_ONCE, first_line
from rl_trainer.run.stopping import StopRequest
from rl_trainer.storage.remote_folder import RemoteFolder

EXAMPLES = """examples:
  rltrain run examples/quickstart.yaml
  rltrain run examples/quickstart.yaml --set seed=2 --set stop.maxSteps=50 --out runs/short
  rltrain run examples/quickstart.yaml --resume
  RAY_ADDRESS=auto rltrain run examples/async.yaml     # on the Ray cluster this machine belongs to
"""


_VERIFY = """\
Checks that a checkpoint is what was written, file by file and byte by byte: what was changed, is missing or was added is
named. Shows its lineage: digests of the run's spec, of the data, of the parent checkpoint, of rltrain's code and of the
modules of your own that reward; what an earlier version did not record is said. Needs neither the run nor a cluster, and
nothing of the checkpoint is run. Exit code 0: every file is as it was written; 1: not so, or it cannot be read."""

_VERIFY_EXAMPLES = """examples:
  rltrain verify runs/quickstart/checkpoints/step-00000020
  rltrain verify s3://checkpoints/team-a/arithmetic-1a2b3c4d/step-00000100
  rltrain verify step-00000100 --digest 5f2a...      # the digest that was noted when it was made
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 2 wrong input, 3 a failing reward, 130 or 143 a signal, else 1."""
    args = _parser().parse_args(arguments)
    try:
        return int(args.command(args))
    except RLTrainError as error:
        if args.debug and error.exit_code in (1, 3):
            print(printable_lines(traceback.format_exc()), file=sys.stderr, end="")
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt as error:
        return _say(STOPPED_AT_ONCE, getattr(error, "exit_code", 130))
    except BrokenPipeError:
        # Whoever read our output has left, for instance `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if args.debug:
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _say(f"unexpected error: {text:.300}; --debug shows where it comes from", 1)


def _say(sentences: str, status: int) -> int:
    for sentence in printable_lines(sentences).split("\n"):
        print(f"rltrain: {sentence}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rltrain",
        description="Reinforcement learning of language models: here, or on a Kubernetes cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks and Ray's own log lines")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    run = commands.add_parser(
        "run",
        help="train a run on this machine, or on the Ray cluster at RAY_ADDRESS",
        description="Trains an RLTrainingRun on this machine, or on the Ray cluster named by RAY_ADDRESS.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("file", metavar="FILE", help="YAML file with one RLTrainingRun; - for standard input")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        dest="overrides",
        help="override a field of spec, such as algorithm.learningRate=1e-4; may be given several times",
    )
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME)")
    run.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest good checkpoint in the run folder; start anew when there is none",
    )
    run.add_argument(
        "--overwrite", action="store_true", help="remove an earlier run from the run folder first"
    )
    run.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="placement-profile.json of such a run, or its folder: with placement.mode auto it says who gets which devices "
        "from the start",
    )
    run.add_argument(
        "--dashboard",
        action="store_true",
        help="start Ray's own dashboard too, for the length of the run, and say where: what its actors and tasks do",
    )
    run.set_defaults(command=_run)

    report = commands.add_parser(
        "report",
        help="make report.html of a run folder anew",
        description="Makes report.html of a run folder anew, also while the run goes on.",
        epilog="example:\n  rltrain report runs/quickstart",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("folder", type=Path, metavar="DIR", help="run folder")
    report.set_defaults(command=_report)

    verify = commands.add_parser(
        "verify",
        help="check every byte of a checkpoint, and show where it comes from",
        description=_VERIFY,
        epilog=_VERIFY_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="folder of a checkpoint, or s3://bucket/.../step-N"
    )
    verify.add_argument(
        "--digest", metavar="SHA256", help="what its digest must be, as an earlier verify showed it"
    )
    verify.set_defaults(command=_verify)
    return parser


def _run(args: argparse.Namespace) -> int:
    run = load_run(args.file, args.overrides)
    if args.resume and args.overwrite:
        raise InvalidConfig("--resume and --overwrite: found both, allowed is one of them")
    if args.dashboard and run.spec.trainer.kind != "rltrain":
        raise InvalidConfig(
            f"--dashboard: found with trainer.kind {run.spec.trainer.kind}, whose Ray is its own; allowed with rltrain"
        )
    profile = None if args.profile is None else load_profile(args.profile, "--profile")
    if profile is not None and (why := why_not_planned(run.spec)) is not None:
        raise InvalidConfig(f"--profile: found with {why}")
    search = Path.cwd() if args.file == "-" else Path(args.file).resolve().parent
    train_run(
        run,
        args.out or Path("runs") / run.name,
        search=search,
        resume=args.resume,
        overwrite=args.overwrite,
        profile=profile,
        debug=args.debug,
        dashboard=args.dashboard,
    )
    return 0


def train_run(
    run: RLTrainingRun,
    out: Path,
    *,
    search: Path,
    resume: bool = False,
    overwrite: bool = False,
    profile: RunProfile | None = None,
    kept: bool = True,
    **options: bool,
) -> None:
    """Trains in the run folder `out`, with progress on the terminal; signals are heard. `search`: where the run's own
    modules and files are; `profile`: what its placement is planned by, with mode auto; None: it is the file's, or where
    that may change while it trains, a prior's;
    `kept`: whether the run folder stays; `options`: see `Session`.

    Raises as `RunFolder` and `rl_trainer.driver.train` do.
    """
    # Only now: importing Ray takes seconds, and a mistake in the file should not.
    from rl_trainer.observe.console import Console
    from rl_trainer.run.run_folder import RunFolder

    spec = run.spec
    with (
        StopRequest() as stop,
        RunFolder(out, resume=resume, overwrite=overwrite, search=search) as folder,
        Console(
            run.name,
            max_steps=spec.stop.max_steps,
            target=spec.stop.target_reward,
            buffer_capacity=spec.buffer.capacity,
            kept=kept,
        ) as console,
    ):
        if spec.trainer.kind != "rltrain":
            from rl_trainer.program.run import run_program

            run_program(run, folder, console, stop)
            return
        from rl_trainer.driver import train
        from rl_trainer.run.beginning import begun
        from rl_trainer.run.planning import PlacementChanged, planned

        if profile is not None:
            run = planned(run, profile, console.message)
            folder.placements_left, folder.planned_by = [], profile
        elif folder.attempt is None:  # else the operator has chosen
            folder.first = begun(run, console.message)
            run = run if folder.first is None else folder.first.run
        try:
            while True:
                try:
                    train(run, folder, console, stop, **options)
                    break
                except PlacementChanged as change:
                    folder.placements_left, folder.first = change.left, None
                    run, folder.resume = change.run, True
        except Interrupted:
            raise
        except Exception as error:
            if not stop.requested:
                raise
            # What else the signal reached may have ended too: a Ray that is not in a group of its own, a node of a cluster.
            with_ray = isinstance(error, ActorDied | DeadlineExceeded)
            why = ", as Ray was stopped too" if with_ray else f": {first_line(error)}"
            raise stop.interrupted(
                f"stopped before the step's checkpoint could be written{why}; {RESUME_HINT}"
            ) from error


def _verify(args: argparse.Namespace) -> int:
    place = args.checkpoint
    found = inspect_remote(RemoteFolder(place)) if "://" in place else inspect_folder(Path(place))
    for label, text in table(found):
        print(f"{label:<12}{text}")
    problems = list(found.problems)
    if args.digest is not None and args.digest.lower() != found.checkpoint.digest:
        problems.insert(
            0, f"its digest is not {args.digest}: it is another checkpoint, or its manifest was made anew"
        )
    if not problems:
        print("every file is as it was written")
        return 0
    raise CheckpointError("\n".join(f"{place}: {sentence}" for sentence in told(tuple(problems))))


def _report(args: argparse.Namespace) -> int:
    from rl_trainer.observe.page import write_report

    print(write_report(args.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
