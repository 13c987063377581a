"""Options that the commands for a cluster share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rl_cli.cluster import Cluster

N = TypeVar("N", int, float)

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def program() -> str:
    """How the command was called, for hints that can be typed: `rltrain` or `kubectl rltrain`."""
    return "kubectl rltrain" if Path(sys.argv[0]).stem == "kubectl-rltrain" else "rltrain"


def new_parser(
    subparsers: Subparsers,
    name: str,
    command: Callable[[argparse.Namespace], int],
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """The parser of the command `name`, which `command` carries out."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    return parser


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add FILE and --set."""
    parser.add_argument("file", metavar="FILE", help="YAML file; - for standard input")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        dest="overrides",
        help="override a field of spec, such as sampler.replicas=4; may be given several times",
    )


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add NAME."""
    parser.add_argument("name", metavar="NAME", help="name of the run")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which cluster and namespace is meant, as for kubectl."""
    group = parser.add_argument_group("cluster")
    group.add_argument("-n", "--namespace", metavar="NS", help="namespace (default: the context's)")
    group.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: its current one)"
    )
    group.add_argument(
        "--kubeconfig", metavar="FILE", help="kubeconfig (default: $KUBECONFIG or ~/.kube/config)"
    )


def connect(args: argparse.Namespace) -> Cluster:
    """The cluster that the options mean."""
    from rl_cli.cluster import Cluster

    return Cluster.connect(args.kubeconfig, args.context)


def whole(low: int, high: int) -> Callable[[str], int]:
    """What argparse takes for a whole number, `low` and `high` included."""
    return _between(int, low, high, f"a whole number from {low} to {high}")


def number(low: float, high: float, allowed: str) -> Callable[[str], float]:
    """What argparse takes for a number, `low` and `high` included."""
    return _between(float, low, high, allowed)


def _between(kind: type[N], low: N, high: N, allowed: str) -> Callable[[str], N]:
    def parse(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = kind(low - 1)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"found {text}, allowed: {allowed}")
        return value

    return parse
