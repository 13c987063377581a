"""`rltrain validate`: the part of the command line that needs nothing but the contract."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rl_api.errors import InvalidConfig
from rl_api.validation import check_files

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Check RLTrainingRun and RLTrainingProfile files without starting anything.

Every problem of every file is one line on standard error: the file, the field, what was found and what is
allowed. Unknown fields are refused. Exit code 0: all valid; 2: something is wrong."""

_EXAMPLES = """\
examples:
  rltrain validate examples/quickstart.yaml
  rltrain validate runs/*.yaml profile.yaml
  rltrain validate --for cluster run.yaml      # also what only a cluster needs, such as checkpoint storage
  kubectl get rlrun arithmetic -o yaml | rltrain validate -
"""


def add_validate_parser(subparsers: _Subparsers) -> argparse.ArgumentParser:
    """Add the command `validate` to a command line's subparsers and return its parser."""
    parser = subparsers.add_parser(
        "validate",
        help="check run and profile files",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML file, or - for standard input")
    parser.add_argument(
        "--for",
        dest="target",
        choices=("local", "cluster"),
        default="local",
        help="where the runs are to go: this machine (default), or a Kubernetes cluster, which needs more",
    )
    return parser


def run_validate(args: argparse.Namespace) -> int:
    """Check `args.files` for `args.target`, print what is valid and what is wrong; the exit code."""
    report = check_files(args.files, args.target)
    for source, resource in report.valid:
        print(f"{source}: {resource.kind} {resource.name} is valid")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    return InvalidConfig.exit_code if report.problems else 0
