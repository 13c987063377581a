"""`rltrain render`: the objects that the operator would create for runs and services."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rl_api import dump_yaml
from rl_api.base import API_VERSION
from rl_api.errors import InvalidConfig, InvalidDocuments
from rl_api.printable import printable
from rl_api.service_status import FollowedRun
from rl_api.verl import verl_config
from rl_cli.documents import as_planned, place, read_objects, read_profiles, service_as_planned, with_profile
from rl_cli.options import Subparsers, add_file_options, new_parser
from rl_operator.model.names import KIND, LEARNER, SERVICE_KIND, Key, Manifest
from rl_operator.plan.effective import Effective
from rl_operator.plan.service import EffectiveService, follow
from rl_operator.render.objects import all_objects
from rl_operator.render.pods import DATA_FOLDER
from rl_operator.render.service import ray_service, service_objects, service_secret
from rl_trainer.program.environment import checkpoint_place

MASK: Final = "********"
"""What stands for tokens."""

_DESCRIPTION: Final = """\
Write the objects that the operator would create for the runs and services of a file, as YAML on standard output. For
the first attempt of a run: NetworkPolicy, PodDisruptionBudget, Secret, ConfigMap, and the RayJob or RayCluster. For a
service, before it has a policy: Secret, NetworkPolicy, PodDisruptionBudget, RayService. Roles in pools with a device
class have a ResourceClaimTemplate besides. Nothing is asked of a cluster.

What only a cluster knows is left open: tokens are masked, and uids are a row of zeros. Where a service finds policies
is known where the run that it follows is in the same file. Without --profile there is what a cluster without profiles
gives: one pool of all nodes, no accelerators."""

_EXAMPLES: Final = """\
  rltrain render examples/quickstart-cluster.yaml
  rltrain render run.yaml --profile examples/profile-gpu.yaml --set sampler.replicas=4
  rltrain render run.yaml -n team-a | less
  cat run.yaml service.yaml | rltrain render -        # each begins with ---
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
    objects = [
        with_profile(place(one, args.namespace, "default"), profiles)
        for one in read_objects(args.file, args.overrides)
        if one["apiVersion"] == API_VERSION and one["kind"] in (KIND, SERVICE_KIND)
    ]
    runs = [as_planned(args.file, one, profiles) for one in objects if one["kind"] == KIND]
    if args.verl:
        if len(runs) != 1:
            raise InvalidConfig(
                f"{args.file}: found {len(runs)} documents of kind RLTrainingRun, allowed: exactly one with --verl"
            )
        sys.stdout.write(_verl(args.file, runs[0]))
        return 0
    if not objects:
        raise InvalidConfig(
            f"{args.file}: found no RLTrainingRun and no RLPolicyService, allowed: a file with at least one"
        )
    services = [
        service_as_planned(args.file, one, profiles) for one in objects if one["kind"] == SERVICE_KIND
    ]
    known = {(run.namespace, run.name): run for run in runs}
    policies = [(service, _followed(args.file, service, known)) for service in services]
    for manifest in (
        *(one for run in runs for one in masked_objects(run)),
        *(one for service, followed in policies for one in masked_service(service, followed)),
    ):
        sys.stdout.write(f"---\n{as_text(manifest)}")
    return 0


def _followed(source: str, service: EffectiveService, runs: Mapping[Key, Effective]) -> FollowedRun | None:
    """Where the run that a service follows keeps its checkpoints; None: it follows none, or which is not known.

    Raises:
        InvalidDocuments: nobody else gets at them there.
    """
    name = service.spec.source.run
    if name is None:
        return None
    run = runs.get((service.namespace, name))
    if run is None:
        said = (
            f"{source}: spec.from.run: run {name} is not in this file, so where service {service.name} finds its "
            "checkpoints is left open"
        )
        print(f"rltrain: {printable(said)}", file=sys.stderr)
        return None
    followed, lost = follow(name, {"metadata": {"uid": run.uid}}, run, None)
    if lost is not None:
        raise InvalidDocuments([f"{source}: {lost.message}"])
    return followed


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


def as_text(manifest: Manifest) -> str:
    """YAML of an object; the files in it can be read as they are."""
    if manifest["kind"] == "ConfigMap":
        files = "".join(f"  {name}: {_block(text, 4)}" for name, text in manifest["data"].items())
        rest = {key: value for key, value in manifest.items() if key != "data"}
        return f"{dump_yaml(rest)}data:\n{files}"
    if manifest["kind"] == "RayService":
        spec, key = dict(manifest["spec"]), "serveConfigV2"
        config = spec.pop(key)
        return f"{dump_yaml(manifest | {'spec': spec})}  {key}: {_block(config, 4)}"
    return dump_yaml(manifest)


def _block(text: str, indent: int) -> str:
    """A text that ends with a line's end, as a block of YAML."""
    return f"|\n{textwrap.indent(text, ' ' * indent)}"


def masked_objects(effective: Effective) -> list[Manifest]:
    """The objects of the first attempt, in the order in which they are created, without a token."""
    return [_masked(manifest) for manifest in all_objects(effective, 1, b"")]


def masked_service(service: EffectiveService, followed: FollowedRun | None) -> list[Manifest]:
    """The objects of a service that has no policy yet, in the order in which they are created, without a token."""
    return [
        _masked(service_secret(service, b"")),
        *service_objects(service),
        ray_service(service, followed, None),
    ]


def _masked(manifest: Manifest) -> Manifest:
    if manifest["kind"] != "Secret":
        return manifest
    return manifest | {"data": dict.fromkeys(manifest["data"], MASK)}
