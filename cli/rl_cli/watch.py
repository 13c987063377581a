"""`rltrain watch`: one run or all of them, live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from rl_api.errors import InvalidConfig
from rl_cli.failures import ClusterError
from rl_cli.options import Subparsers, add_cluster_options, connect, new_parser
from rl_cli.view import row
from rl_operator.kube.wire import BREATH_SECONDS

_PATIENCE_SECONDS: Final = 300.0
"""How long an API server that was there may be away before the watch gives up."""

_PAUSE_SECONDS: Final = 2.0

_DESCRIPTION: Final = """\
Show how a run goes: phase, step, reward, held-out score, speed, buffer, staleness, samplers, attempt, checkpoint,
and the reason when it does not run. Live on a terminal; elsewhere one line for every change. Ends when the run ends:
exit code 0 when it has succeeded, 1 when it has failed or was deleted. Without NAME all runs of the namespace are
shown until Ctrl-C."""

_EXAMPLES: Final = """\
  rltrain watch arithmetic
  rltrain watch -A                             # every run of the cluster
  rltrain watch arithmetic -n team-a | tee arithmetic.log
  rltrain apply run.yaml && rltrain watch arithmetic && echo done
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "watch", _watch, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of a run (default: all)")
    parser.add_argument(
        "-A", "--all-namespaces", action="store_true", help="runs of all namespaces; not with NAME"
    )
    add_cluster_options(parser)


def _watch(args: argparse.Namespace) -> int:
    if args.all_namespaces and (args.name or args.namespace):
        found = "NAME" if args.name else "--namespace"
        raise InvalidConfig(f"--all-namespaces: found with {found}, allowed: one of them")
    cluster = connect(args)
    namespace = None if args.all_namespaces else args.namespace or cluster.namespace
    from rl_cli.screen import Screen

    with Screen(args.name, namespace) as screen:
        return follow(cluster, namespace, args.name, screen)


def follow(cluster: Any, namespace: str | None, name: str | None, screen: Any) -> int:
    """Show every state until the run is over; the exit status."""
    if name is not None:
        screen.show([row(cluster.run(namespace, name), datetime.now(UTC))])  # a sentence where there is none
    elif not cluster.runs(namespace)[0]:
        screen.say(f"there are no runs {f'in namespace {namespace}' if namespace else 'in this cluster'} yet")
    for objects in states(cluster, namespace, name, screen.say):
        rows = [row(run, datetime.now(UTC)) for run in objects]
        screen.show(rows)
        if name is None:
            continue
        if not rows:
            raise ClusterError(f"run {name} was deleted")
        if rows[0].over:
            return 0 if rows[0].phase == "Succeeded" else 1
    return 1


def states(
    cluster: Any, namespace: str | None, name: str | None, say: Callable[[str], None]
) -> Iterator[list[dict[str, Any]]]:
    """All runs that match, now and after every change, without end.

    Lists, then watches from there on. A connection that breaks is made again, for five minutes.

    Raises:
        ClusterError: the cluster refuses, or has been away for too long.
    """
    known: dict[tuple[str, str], dict[str, Any]] = {}
    version, away = "", None
    while True:
        try:
            if not version:
                objects, version = cluster.runs(namespace, name)
                known = {_key(one): one for one in objects}
                away = None
                yield list(known.values())
            for kind, found in cluster.changes(namespace, version, name):
                version, away = str(found["metadata"].get("resourceVersion") or ""), None
                if kind == "BOOKMARK":
                    continue
                if kind == "DELETED":
                    known.pop(_key(found), None)
                else:
                    known[_key(found)] = found
                yield list(known.values())
            time.sleep(BREATH_SECONDS)
        except ClusterError as error:
            version = ""
            if error.gone:
                continue
            if not error.passing:
                raise
            if away is None:
                away = time.monotonic()
                say(f"{error}; trying again for {_PATIENCE_SECONDS:.0f} s")
            if time.monotonic() - away >= _PATIENCE_SECONDS:
                raise ClusterError(f"{error}, and did not for {_PATIENCE_SECONDS:.0f} s") from error
            time.sleep(_PAUSE_SECONDS)


def _key(run: dict[str, Any]) -> tuple[str, str]:
    return str(run["metadata"].get("namespace") or ""), str(run["metadata"]["name"])
