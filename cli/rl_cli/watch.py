"""`rltrain watch`: a run, a service, or all of them, live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Final

from rl_api.errors import InvalidConfig
from rl_cli.failures import NOT_INSTALLED, ClusterError
from rl_cli.options import Subparsers, add_cluster_options, connect, new_parser
from rl_cli.service_view import service_row
from rl_cli.view import Shown, row
from rl_operator.kube.wire import BREATH_SECONDS
from rl_operator.model.names import KIND, SERVICE_KIND, Manifest

_PATIENCE_SECONDS: Final = 300.0
"""How long an API server that was there may be away before the watch gives up."""

_PAUSE_SECONDS: Final = 2.0

_SERVICE: Final = ("service", "rlps")
"""What stands before the slash of a service's name."""

_MAY_LACK: Final = (NOT_INSTALLED, 403)
"""Answers with which runs alone are shown: definitions, or a role, from before there were services."""

_DESCRIPTION: Final = """\
Show how a run goes: phase, step, reward, held-out score, speed, buffer, staleness, samplers, attempt, checkpoint,
and the reason when it does not run. Live on a terminal; elsewhere one line for every change. Ends when the run ends:
exit code 0 when it has succeeded, 1 when it has failed or was deleted.

Of a service (service/NAME): phase, the version that serves and its step, the candidate and what is done with it, shares
of the traffic, replicas, what became of the last candidate and why, and the reason when it does not serve. A service
has no end: until Ctrl-C, or until it is deleted (exit code 1).

Without NAME all runs and services of the namespace are shown until Ctrl-C."""

_EXAMPLES: Final = """\
  rltrain watch arithmetic
  rltrain watch service/chat                   # or rlps/chat
  rltrain watch -A                             # every run and service of the cluster
  rltrain watch arithmetic -n team-a | tee arithmetic.log
  rltrain apply run.yaml && rltrain watch arithmetic && echo done
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "watch", _watch, _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="name of a run, or service/NAME (default: all)"
    )
    parser.add_argument(
        "-A", "--all-namespaces", action="store_true", help="those of all namespaces; not with NAME"
    )
    add_cluster_options(parser)


def _watch(args: argparse.Namespace) -> int:
    if args.all_namespaces and (args.name or args.namespace):
        found = "NAME" if args.name else "--namespace"
        raise InvalidConfig(f"--all-namespaces: found with {found}, allowed: one of them")
    kind, name = meant(args.name) if args.name else (KIND, None)
    cluster = connect(args)
    namespace = None if args.all_namespaces else args.namespace or cluster.namespace
    from rl_cli.screen import Screen

    with Screen(args.name, namespace) as screen:
        if name is None:
            return follow_all(cluster, namespace, screen)
        return follow(cluster, kind, namespace, name, screen)


def meant(text: str) -> tuple[str, str]:
    """Kind and name that NAME stands for."""
    before, slash, name = text.partition("/")
    if not slash:
        return KIND, text
    if before not in _SERVICE or not name or "/" in name:
        raise InvalidConfig(f"NAME: found {text!r}, allowed: the name of a run, or service/NAME")
    return SERVICE_KIND, name


def follow(cluster: Any, kind: str, namespace: str | None, name: str, screen: Any) -> int:
    """Show every state of one object until it is over; the exit status."""
    find = cluster.service if kind == SERVICE_KIND else cluster.run
    screen.show(_rows({kind: [find(namespace, name)]}))  # a sentence where there is none
    for objects in states(cluster, kind, namespace, name, screen.say):
        rows = _rows({kind: objects})
        screen.show(rows)
        if not rows:
            raise ClusterError(f"{'service' if kind == SERVICE_KIND else 'run'} {name} was deleted")
        if rows[0].over:
            return 0 if rows[0].phase == "Succeeded" else 1
    return 1


def follow_all(cluster: Any, namespace: str | None, screen: Any) -> int:
    """Show every state of all runs and services, without end."""
    found: dict[str, list[Manifest]] = {KIND: cluster.listed(KIND, namespace)[0]}
    try:
        found[SERVICE_KIND] = cluster.listed(SERVICE_KIND, namespace)[0]
    except ClusterError as error:
        if error.status not in _MAY_LACK:
            raise
        if error.status != NOT_INSTALLED:
            screen.say(f"services are not shown: {error}")
    if not any(found.values()):
        what = "runs and services" if SERVICE_KIND in found else "runs"
        screen.say(
            f"there are no {what} {f'in namespace {namespace}' if namespace else 'in this cluster'} yet"
        )
    screen.show(_rows(found))
    for kind, objects in all_states(cluster, list(found), namespace, screen.say):
        found[kind] = objects
        screen.show(_rows(found))
    return 1


def _rows(objects: Mapping[str, Sequence[Manifest]]) -> list[Shown]:
    """The rows of objects, which are given by kind."""
    now = datetime.now(UTC)
    shapes: dict[str, Callable[[Manifest, datetime], Shown]] = {KIND: row, SERVICE_KIND: service_row}
    return [shapes[kind](one, now) for kind, there in objects.items() for one in there]


def all_states(
    cluster: Any, kinds: Sequence[str], namespace: str | None, say: Callable[[str], None]
) -> Iterator[tuple[str, list[Manifest]]]:
    """`states` of several kinds, as they come: a kind and all its objects.

    Raises:
        ClusterError: as `states`; a cluster that no longer tells of services has none.
    """
    if len(kinds) == 1:
        yield from ((kinds[0], objects) for objects in states(cluster, kinds[0], namespace, None, say))
        return
    news: SimpleQueue[tuple[str, list[Manifest] | str | Exception]] = SimpleQueue()

    def read(kind: str) -> None:
        # A watch is a request that waits for the API server, so each kind has a thread.
        try:
            for objects in states(cluster, kind, namespace, None, lambda text: news.put((kind, text))):
                news.put((kind, objects))
        except Exception as error:
            news.put((kind, error))

    for kind in kinds:
        threading.Thread(target=read, args=(kind,), daemon=True, name=f"watch of {kind}").start()
    told: set[str] = set()
    while True:
        kind, found = news.get()
        if isinstance(found, str):
            if found not in told:  # both lose an API server that is away
                say(found)
            told.add(found)
        elif isinstance(found, Exception):
            if kind == KIND or not isinstance(found, ClusterError) or found.status not in _MAY_LACK:
                raise found
            yield kind, []
        else:
            told.clear()
            yield kind, found


def states(
    cluster: Any, kind: str, namespace: str | None, name: str | None, say: Callable[[str], None]
) -> Iterator[list[Manifest]]:
    """All objects of a kind that match, now and after every change, without end.

    Lists, then watches from there on. A connection that breaks is made again, for five minutes.

    Raises:
        ClusterError: the cluster refuses, or has been away for too long.
    """
    known: dict[tuple[str, str], Manifest] = {}
    version, away = "", None
    while True:
        try:
            if not version:
                objects, version = cluster.listed(kind, namespace, name)
                known = {_key(one): one for one in objects}
                away = None
                yield list(known.values())
            for change, found in cluster.changes(kind, namespace, version, name):
                version, away = str(found["metadata"].get("resourceVersion") or ""), None
                if change == "BOOKMARK":
                    continue
                if change == "DELETED":
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


def _key(one: Manifest) -> tuple[str, str]:
    return str(one["metadata"].get("namespace") or ""), str(one["metadata"]["name"])
