"""`rltrain exec`: a command, or a shell, in the container of a run's driver."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from rl_api.errors import InvalidConfig
from rl_cli.attach import attach, has_terminal
from rl_cli.failures import ClusterError
from rl_cli.logs import no_pods
from rl_cli.options import Subparsers, add_cluster_options, add_name, connect, new_parser
from rl_cli.pods import name_of, newest, running
from rl_operator.render.rayjob import ENTRYPOINT
from rl_operator.render.secrets import with_secrets

_SHELL: Final = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")

_DESCRIPTION: Final = """\
Run a command in the head pod of a run: there the driver is, the run's file (/etc/rltrain/run.yaml), its folder
(/var/lib/rltrain/run) and the Ray cluster, to which `ray` and Python connect by themselves. Without a command it is a
shell. This is how a run with workload: Cluster is worked with; one with workload: Job can be looked into while it
trains. On a terminal the command has one, too; else standard input is sent to it. The exit code is the command's."""

_EXAMPLES: Final = """\
  rltrain exec arithmetic
  rltrain exec arithmetic -- ray status
  rltrain exec arithmetic -- python
  rltrain exec arithmetic -n team-a -- python - < probe.py
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "exec", _exec, _DESCRIPTION, _EXAMPLES)
    parser.usage = "%(prog)s [-h] [options] NAME [-- COMMAND ...]"
    add_name(parser)
    add_cluster_options(parser)
    parser.set_defaults(takes_command=True)


def _exec(args: argparse.Namespace) -> int:
    if not args.after and not has_terminal():
        raise InvalidConfig(
            f"no command, and no terminal for a shell: name one after --, as in rltrain exec {args.name} -- ray status"
        )
    cluster = connect(args)
    namespace = args.namespace or cluster.namespace
    run = cluster.run(namespace, args.name)
    heads = newest(cluster.pods(namespace, args.name), "head")
    if not heads:
        raise ClusterError(no_pods(run, "head"))
    alive = [name_of(pod) for pod in heads if running(pod)]
    if not alive:
        raise ClusterError(
            f"{name_of(heads[0])} of run {args.name} is not running: rltrain watch {args.name} says why"
        )
    if not args.after:
        print(f"pod {alive[0]}; what a job would run here: {ENTRYPOINT}", file=sys.stderr)
    return attach(cluster, namespace, alive[0], with_secrets(args.after or _SHELL))
