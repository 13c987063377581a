"""`rltrain suspend`, `resume` and `cancel`."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

from rl_api.errors import InvalidConfig
from rl_cli.failures import ClusterError
from rl_cli.options import Subparsers, add_cluster_options, add_name, connect, new_parser, program
from rl_cli.view import row

_POLL_SECONDS: Final = 1.0

_SUSPEND: Final = """\
Suspend a run: its driver writes a checkpoint (spec.scheduling.preemptionGracePeriod is the time for it), then its pods
are stopped and their accelerators are free. `rltrain resume` goes on from there."""

_RESUME: Final = """\
Go on with a suspended run from its last checkpoint, in a new attempt."""

_CANCEL: Final = """\
Delete a run. Its driver writes a last checkpoint first, then its pods and all its objects go. Checkpoints stay where
they are. Waits until the run is gone."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the three commands."""
    for name, command, description in (
        ("suspend", _suspend, _SUSPEND),
        ("resume", _suspend, _RESUME),
        ("cancel", _cancel, _CANCEL),
    ):
        examples = f"  rltrain {name} arithmetic\n  rltrain {name} arithmetic -n team-a\n"
        if name == "cancel":
            examples += "  rltrain cancel arithmetic --yes --timeout 600     # in a script\n"
        parser = new_parser(subparsers, name, command, description, examples)
        parser.set_defaults(suspend=name == "suspend")
        add_name(parser)
        if name == "cancel":
            parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
            parser.add_argument(
                "--timeout",
                type=float,
                default=300.0,
                metavar="SECONDS",
                help="how long to wait for the run to be gone; 0: do not wait (default: 300)",
            )
        add_cluster_options(parser)


def _suspend(args: argparse.Namespace) -> int:
    """Suspend the run, or go on with it."""
    wanted: bool = args.suspend
    cluster = connect(args)
    namespace = args.namespace or cluster.namespace
    run = cluster.run(namespace, args.name)
    shown = row(run, datetime.now(UTC))
    if shown.deleting:
        raise ClusterError(f"run {args.name} is being deleted")
    if shown.over:
        verb = "suspend" if wanted else "resume"
        raise ClusterError(f"run {args.name} is over ({shown.phase}): there is nothing to {verb}")
    now = (run.get("spec") or {}).get("suspend") is True
    if now == wanted:
        print(f"run {args.name} is {'suspended already' if wanted else 'not suspended'}")
        return 0
    cluster.patch_run(namespace, args.name, {"spec": {"suspend": wanted}})
    if wanted:
        print(f"run {args.name} is being suspended: it writes a checkpoint, then its pods are stopped")
        print(f"next: {program()} resume {args.name}{_scope(args)}")
    else:
        at = f" from step {shown.checkpoint}" if shown.checkpoint is not None else ""
        print(f"run {args.name} goes on{at}")
        print(f"next: {program()} watch {args.name}{_scope(args)}")
    return 0


def _scope(args: argparse.Namespace) -> str:
    return f" -n {args.namespace}" if args.namespace else ""


def _cancel(args: argparse.Namespace) -> int:
    cluster = connect(args)
    namespace = args.namespace or cluster.namespace
    shown = row(cluster.run(namespace, args.name), datetime.now(UTC))
    if not args.yes:
        if not sys.stdin.isatty():
            raise InvalidConfig("--yes: missing, required where nobody can be asked")
        step = shown.facts().get("step")
        state = f"{shown.phase}{f', step {step}' if step else ''}"
        answer = input(f"Delete run {args.name} in namespace {namespace} ({state})? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing was done")
            return 0
    try:
        cluster.delete_run(namespace, args.name, shown.uid)
    except ClusterError as error:
        if not error.missing:
            raise
    if args.timeout <= 0:
        print(f"run {args.name} is being deleted, after a last checkpoint")
        return 0
    _wait_until_gone(cluster, namespace, args.name, shown.uid, args.timeout)
    kept = f"; its checkpoints stay at {shown.checkpoint_uri}" if shown.checkpoint_uri else ""
    print(f"run {args.name} is deleted{kept}")
    return 0


def _wait_until_gone(cluster: Any, namespace: str, name: str, uid: str, seconds: float) -> None:
    """Wait for the operator to let the run go, which it does after the last checkpoint."""
    began, told = time.monotonic(), False
    while True:
        try:
            run = cluster.run(namespace, name)
        except ClusterError as error:
            if error.missing:
                return
            if not error.passing:
                raise
            run = None
        if run is not None and run["metadata"].get("uid") != uid:
            return
        if time.monotonic() - began > seconds:
            raise ClusterError(
                f"run {name} is still there after {seconds:.0f} s, as its operator has not let it go: "
                "is the operator running? (kubectl get pods -A -l app.kubernetes.io/name=rltrain)"
            )
        if not told:
            print(f"waiting for the last checkpoint of run {name}", file=sys.stderr, flush=True)
            told = True
        time.sleep(_POLL_SECONDS)
