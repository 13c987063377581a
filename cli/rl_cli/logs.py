"""`rltrain logs`: what the driver, the actors of a role, or pods wrote."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rl_api.printable import printable_lines
from rl_api.task import WORKERS, role_of
from rl_cli.execute import CommandFailed, execute
from rl_cli.failures import ClusterError
from rl_cli.options import Subparsers, add_cluster_options, add_name, connect, new_parser
from rl_cli.pods import name_of, newest, running
from rl_cli.view import row

_IDLE_SECONDS: Final = 30.0
_LOGS: Final = "/tmp/ray/session_latest/logs"
"""Where Ray keeps what its processes write, in every pod."""

_BEGIN_SECONDS: Final = 300
"""How long a log that is followed may take to begin."""

_LONGEST_LINE: Final = 1 << 20
_NOTHING_YET: Final = 3
"""Exit code of our commands in a pod where there is no such file."""

_DESCRIPTION: Final = """\
Show what a run wrote. --role driver (the default) is the training itself: its steps, warnings and the error that it
ended with. sampler, learner, simulator and reward-model are the actors of that role; head is the pod of driver
and buffer. With --pod it is what the pods themselves wrote: how Ray started, also in pods that have ended. Logs go
with their pods; why an attempt ended stays in the run's status (rltrain watch)."""

_EXAMPLES: Final = """\
  rltrain logs arithmetic
  rltrain logs arithmetic -f --tail 20
  rltrain logs arithmetic --role sampler -n team-a
  rltrain logs arithmetic --role learner --pod
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "logs", _logs, _DESCRIPTION, _EXAMPLES)
    add_name(parser)
    parser.add_argument(
        "--role",
        choices=("driver", "head", "sampler", "learner", *map(role_of, WORKERS)),
        default="driver",
        help="whose log (default: driver)",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written from now on")
    parser.add_argument("--tail", type=_lines, metavar="N", help="only the last N lines (default: all)")
    parser.add_argument("--pod", action="store_true", help="what the pods themselves wrote")
    add_cluster_options(parser)


def _lines(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed: a whole number >= 0")
    return int(text)


def _logs(args: argparse.Namespace) -> int:
    cluster = connect(args)
    namespace = args.namespace or cluster.namespace
    run = cluster.run(namespace, args.name)
    role = "head" if args.role == "driver" else args.role
    pods = newest(cluster.pods(namespace, args.name), role)
    if not pods:
        raise ClusterError(no_pods(run, role))
    inside = args.role != "head" and not args.pod
    alive = [pod for pod in pods if running(pod)] if inside else pods
    if not alive:
        names = ", ".join(map(name_of, pods))
        raise ClusterError(
            f"{names} of run {args.name} is not running: --pod shows what the pod itself wrote, "
            "rltrain watch why it does not run"
        )
    sources = []
    for pod in alive:
        if inside:
            sources.append((name_of(pod), _inside(cluster, namespace, name_of(pod), args)))
        else:
            lines = cluster.log(namespace, name_of(pod), follow=args.follow, tail=args.tail)
            sources.append((name_of(pod), lines))
    written = False
    for line in merged(sources) if args.follow else one_after_another(sources):
        written = True
        sys.stdout.buffer.write(shown(line) + b"\n")
        sys.stdout.buffer.flush()
    if not written:
        raise ClusterError(
            f"{', '.join(name for name, _ in sources)} of run {args.name} has written nothing yet"
        )
    return 0


def no_pods(run: Mapping[str, Any], role: str) -> str:
    """Why there is nothing to show."""
    one = row(run, datetime.now(UTC))
    why = f": {one.reason}" if one.reason else ", and its log went with it" if one.over else ""
    return f"run {one.name} ({one.phase}) has no {role} pod{why}"


def command_of(role: str, follow: bool, tail: int | None) -> list[str]:
    """Shell command that shows the driver's log, or what the actors of a pod wrote."""
    lines = f"-n {tail}" if tail is not None else "-n +1"
    how = f"tail {lines} -F" if follow else f"tail {lines}"
    if role == "driver":
        find = f"ls -t {_LOGS}/job-driver-*.log 2>/dev/null | head -n 1"
        show = f'exec {how} "$files"'
    else:
        find = f"find -L {_LOGS} -maxdepth 1 -name 'worker-*' \\( -name '*.out' -o -name '*.err' \\) -size +0"
        show = f"exec {how} -q $files"
    # Who follows a log waits for it to begin; not for ever, as nobody stops a command whose caller has left.
    tries = _BEGIN_SECONDS if follow else 1
    wait = "sleep 1; " if follow else ""
    script = f'for i in $(seq {tries}); do files=$({find}); [ -n "$files" ] && {show}; {wait}done; exit {_NOTHING_YET}'
    return ["sh", "-c", script]


def _inside(cluster: Any, namespace: str, pod: str, args: argparse.Namespace) -> Iterator[bytes]:
    command = command_of(args.role, args.follow, args.tail)
    idle = None if args.follow else _IDLE_SECONDS
    try:
        yield from split(execute(cluster, namespace, pod, command, idle=idle))
    except CommandFailed as error:
        if args.follow and error.code != _NOTHING_YET:
            # Nothing but the end of its pod ends a log that is followed.
            print(
                f"rltrain: {pod} has ended; rltrain watch {args.name} says how the run goes on",
                file=sys.stderr,
            )
            return
        if error.code == _NOTHING_YET:
            who = "driver" if args.role == "driver" else "actors"
            raise ClusterError(f"the {who} in pod {pod} has written nothing yet") from error
        raise ClusterError(f"the log in pod {pod} cannot be read: {error}") from error


def shown(line: bytes) -> bytes:
    """A line as a terminal may get it: what a pod writes does not steer it. Colours go, too."""
    return printable_lines(line.removesuffix(b"\r").decode(errors="replace")).encode()


def split(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Lines of output that comes in pieces; one that does not end is given up at some length."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > _LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def one_after_another(sources: Sequence[tuple[str, Iterator[bytes]]]) -> Iterator[bytes]:
    """The logs one after another, each line with its pod where there are several."""
    for name, lines in sources:
        prefix = f"{name} | ".encode() if len(sources) > 1 else b""
        yield from (prefix + line for line in lines)


def merged(sources: Sequence[tuple[str, Iterator[bytes]]]) -> Iterator[bytes]:
    """The logs together, as their lines come."""
    if len(sources) == 1:
        yield from sources[0][1]
        return
    lines: queue.Queue[bytes | Exception | None] = queue.Queue(maxsize=1000)

    def read(name: str, source: Iterator[bytes]) -> None:
        try:
            for line in source:
                lines.put(f"{name} | ".encode() + line)
        except Exception as error:  # it is raised again where lines are taken
            lines.put(error)
        else:
            lines.put(None)

    for name, source in sources:
        threading.Thread(target=read, args=(name, source), daemon=True).start()
    left = len(sources)
    while left:
        item = lines.get()
        if item is None:
            left -= 1
        elif isinstance(item, Exception):
            raise item
        else:
            yield item
