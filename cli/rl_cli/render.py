"""`rltrain render`: the objects that the operator would create for a run."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

from rl_api import dump_yaml, load_run
from rl_api.errors import InvalidConfig
from rl_api.verl import verl_config
from rl_cli.documents import as_planned, place, plain, read_profiles, with_profile
from rl_cli.options import Subparsers, add_file_options, new_parser
from rl_operator.model.names import LEARNER
from rl_operator.render.objects import all_objects
from rl_operator.render.pods import DATA_FOLDER
from rl_trainer.program.environment import checkpoint_place

MASK: Final = "********"
"""What stands for the tokens of the attempt."""

_DESCRIPTION: Final = """\
Write the objects that the operator would create for the first attempt of a run, as YAML on standard output:
NetworkPolicy, PodDisruptionBudget, Secret, ConfigMap, and the RayJob or RayCluster. Nothing is asked of a cluster.

What only a cluster knows is left open: tokens are masked, and the run's uid is a row of zeros. Without --profile
the run gets what a cluster without profiles gives it: one pool of all nodes, no accelerators."""

_EXAMPLES: Final = """\
  rltrain render examples/quickstart-cluster.yaml
  rltrain render run.yaml --profile examples/profile-gpu.yaml --set sampler.replicas=4
  rltrain render run.yaml -n team-a | less
  rltrain render --verl run.yaml --profile examples/profile-gpu.yaml
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "render", _render, _DESCRIPTION, _EXAMPLES)
    add_file_options(parser)
    parser.add_argument("--profile", metavar="FILE", help="file with the cluster's RLTrainingProfiles")
    parser.add_argument(
        "--verl",
        action="store_true",
        help="instead, write the configuration that verl would be given for a run of trainer.kind verl",
    )
    parser.add_argument("-n", "--namespace", metavar="NS", help="namespace (default: the file's, or default)")


def _render(args: argparse.Namespace) -> int:
    profiles = read_profiles(args.profile) if args.profile else []
    run = place(plain(load_run(args.file, args.overrides)), args.namespace, "default")
    effective = as_planned(args.file, with_profile(run, profiles), profiles)
    if args.verl:
        sys.stdout.write(_verl(args.file, effective))
        return 0
    for manifest in masked_objects(effective):
        sys.stdout.write(f"---\n{as_text(manifest)}")
    return 0


def _verl(source: str, effective: Any) -> str:
    """YAML of verl's configuration."""
    kind = effective.spec.trainer.kind
    if kind != "verl":
        raise InvalidConfig(f"{source}: spec.trainer.kind: found {kind!r}, allowed with --verl: verl")
    return dump_yaml(
        verl_config(
            effective.spec,
            name=effective.name,
            checkpoints=checkpoint_place(effective.spec, Path(DATA_FOLDER, "run")),
            gpus_per_node=effective.role(LEARNER).accelerators,
        )
    )


def as_text(manifest: dict[str, Any]) -> str:
    """YAML of an object; the files in a ConfigMap can be read as they are."""
    if manifest["kind"] != "ConfigMap":
        return dump_yaml(manifest)
    files = "".join(
        f"  {name}: |\n{textwrap.indent(content, '    ')}" for name, content in manifest["data"].items()
    )
    rest = {key: value for key, value in manifest.items() if key != "data"}
    return f"{dump_yaml(rest)}data:\n{files}"


def masked_objects(effective: Any) -> list[dict[str, Any]]:
    """The objects of the first attempt, in the order in which they are created, without a token."""
    return [
        manifest | {"data": dict.fromkeys(manifest["data"], MASK)}
        if manifest["kind"] == "Secret"
        else manifest
        for manifest in all_objects(effective, 1, b"")
    ]
