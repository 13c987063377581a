"""`rltrain validate`: what is wrong with files, without starting anything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from rl_api import RLTrainingProfile, RLTrainingRun
from rl_api.errors import InvalidConfig, InvalidDocuments
from rl_api.printable import printable_lines
from rl_api.validation import Checked, blamed_sentence, check_files
from rl_cli.documents import as_planned, place, plain, read_profiles, service_as_planned
from rl_cli.options import Subparsers, new_parser
from rl_cli.patterns import wrong_patterns
from rl_operator.model.names import Manifest

_DESCRIPTION: Final = """\
Check RLTrainingRun, RLPolicyService and RLTrainingProfile files without starting anything.

Every problem of every file is one line on standard error: the file, the field, what was found and what is
allowed. Unknown fields are refused. Exit code 0: all valid; 2: something is wrong.

With --profile the runs and services are also held against what the cluster's profiles allow, limit and add, as the
operator does it. What depends on the namespace's labels and on other runs only the cluster knows."""

_EXAMPLES: Final = """\
  rltrain validate examples/quickstart.yaml
  rltrain validate runs/*.yaml profile.yaml
  rltrain validate --for cluster run.yaml      # also what only a cluster needs, such as checkpoint storage
  rltrain validate --profile examples/profile-gpu.yaml run.yaml service.yaml
  kubectl get rlrun arithmetic -o yaml | rltrain validate -
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "validate", _validate, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML file, or - for standard input")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--for",
        dest="target",
        choices=("local", "cluster"),
        default="local",
        help="where the runs are to go: this machine (default), or a Kubernetes cluster, which needs more",
    )
    where.add_argument(
        "--profile", metavar="FILE", help="file with the RLTrainingProfiles of the cluster they are to go to"
    )


def _validate(args: argparse.Namespace) -> int:
    profiles = read_profiles(args.profile) if args.profile else None
    report = check_files(args.files, args.target if profiles is None else "profile")
    problems = list(report.problems)
    for checked in report.valid:
        wrong = _wrong(checked, profiles)
        problems += wrong
        if not wrong:
            what = f"{checked.resource.kind} {checked.resource.name}"
            print(printable_lines(f"{checked.source}: {what} is valid"))
    for problem in problems:
        print(printable_lines(problem), file=sys.stderr)
    return InvalidConfig.exit_code if problems else 0


def _wrong(checked: Checked, profiles: Sequence[Manifest] | None) -> list[str]:
    """What is wrong with an object that is valid by itself; `profiles`: of its cluster, None: not to be looked at."""
    source, resource = checked
    if isinstance(resource, RLTrainingProfile):
        return []
    problems = list[str]()
    planned: Callable[[str, Manifest, Sequence[Manifest]], object] = service_as_planned
    if isinstance(resource, RLTrainingRun):
        problems = [blamed_sentence(source, one, ()) for one in wrong_patterns(resource.spec)]
        planned = as_planned
    if profiles is not None:
        placed = place(plain(resource), None, "default")
        try:
            planned(source, placed, profiles)
        except InvalidDocuments as error:
            problems += error.problems
    return problems
