"""`rltrain plan`: what every role of a run will need, before anything starts."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rl_api import load_run
from rl_api.base import amount
from rl_api.errors import InvalidConfig, InvalidDocuments, ModelError
from rl_api.planner.first import as_asked
from rl_api.printable import printable, printable_lines
from rl_api.run import RunSpec
from rl_api.sizes.devices import accelerator_memory
from rl_api.sizes.memory import Device
from rl_api.sizes.run_plan import Place, Scoring, plan_run, refuse_others
from rl_api.sizes.speeds import Speed, speeds_of
from rl_cli.documents import as_planned, place, read_objects, read_profiles, with_profile
from rl_cli.measured import profile
from rl_cli.model_shape import scoring_shape_of, shape_of
from rl_cli.options import Subparsers, add_file_options, new_parser
from rl_cli.placement_plan import placement_by_prior, placement_plan
from rl_cli.plan_picture import picture
from rl_cli.plan_text import as_json, as_lines
from rl_operator.model.names import KIND, LEARNER, REWARD_MODEL, SAMPLER
from rl_operator.plan.prior import speed_of
from rl_operator.plan.roles import Role

_DESCRIPTION: Final = """\
Say what every role of a run will need, before anything starts: memory of each device by what it is for, room for keys and
values, pods, devices and nodes, the size of a checkpoint, and who sits with whom. Of the model, and of one that scores,
only config.json is read.
The formulas are in docs/scale.md.

How large accelerators are is read from the profile's pools (a resource such as nvidia.com/mig-1g.10gb, or a node label such
as NVIDIA-H100-80GB-HBM3); --device-memory says it where they do not, and without a profile. Roles in pools without
accelerators have the memory of their pods.

Seconds per step are known from what another run measured on the same kind of devices: --measured names its folder.
Which devices samplers and learners should share, when, and in what pieces, is planned from the profile that a run writes
(placement-profile.json): --profile-of names it, or the run's folder. Before there is one, --placement plans it from the
sizes of model, batch and devices alone, by a prior that is good for comparing placements. It has to fit into accelerators of
--device-memory, else those measured, else those of the profile's pools. See docs/placement.md.

Exit code 0: all roles fit, as far as the size of their devices is known; 2: one does not, and the last lines on standard
error say the smallest change with which it would."""

_EXAMPLES: Final = """\
  rltrain plan examples/quickstart.yaml
  rltrain plan examples/quickstart.yaml --device-memory 80G --set learner.replicas=8
  rltrain plan run.yaml --profile examples/profile-gpu.yaml --svg plan.svg
  rltrain plan run.yaml --profile examples/profile-gpu.yaml --bandwidth 2Gi --json
  rltrain plan run.yaml --measured runs/short
  rltrain plan run.yaml --profile-of runs/short --gantt step.svg
  rltrain plan run.yaml --placement
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "plan", _plan, _DESCRIPTION, _EXAMPLES)
    add_file_options(parser)
    parser.add_argument("--profile", metavar="FILE", help="file with the cluster's RLTrainingProfiles")
    parser.add_argument(
        "--device-memory",
        type=_quantity,
        metavar="SIZE",
        help="memory of one accelerator, such as 80Gi (default: as the profile says)",
    )
    parser.add_argument(
        "--bandwidth",
        type=_quantity,
        metavar="SIZE",
        help="bytes that the storage of checkpoints takes in a second, of all who write together, such as 2Gi",
    )
    parser.add_argument(
        "--measured",
        metavar="DIR",
        help="run folder whose measured times say how long a step of this run, and a checkpoint, would take",
    )
    shares = parser.add_mutually_exclusive_group()
    shares.add_argument(
        "--placement",
        action="store_true",
        help="plan who shares devices before anything was measured, by a prior",
    )
    shares.add_argument(
        "--profile-of",
        metavar="PATH",
        help="run folder, or file, with a profile from which it is planned who shares devices",
    )
    parser.add_argument("--gantt", metavar="FILE", help="draw one step with that placement into FILE (SVG)")
    parser.add_argument(
        "--svg", metavar="FILE", help="draw who sits with whom, and how full devices are, into FILE"
    )
    parser.add_argument(
        "--json", action="store_true", help="write the plan as JSON; sizes are in bytes, times in seconds"
    )


def _plan(args: argparse.Namespace) -> int:
    if args.gantt and args.profile_of is None and not args.placement:
        raise InvalidConfig(
            "--gantt: found no --profile-of, allowed: with --profile-of or --placement, whose placement it draws"
        )
    spec, places, ways = _places(args)
    refuse_others(spec)
    shape = shape_of(spec.model)
    plan = plan_run(spec, shape, places[LEARNER], places[SAMPLER], _scoring(spec, places.get(REWARD_MODEL)))
    found = None if args.measured is None else profile(Path(args.measured), spec, plan)
    placed, known = None, _accelerator(places[LEARNER], places[SAMPLER])
    if args.profile_of is not None:
        placed = placement_plan(Path(args.profile_of), ways.asked, known, args.device_memory)
    elif args.placement:
        placed = placement_by_prior(ways.asked, shape, ways.learner, ways.sampler, known)
    if args.svg:
        _write("--svg", Path(args.svg), picture(plan))
    if args.gantt and placed is not None:
        _write("--gantt", Path(args.gantt), placed.picture())
    if args.json:
        placement = {} if placed is None else {"placement": placed.as_json()}
        print(json.dumps(as_json(plan, args.bandwidth, found) | placement, indent=2))
    else:
        lines = as_lines(plan, args.bandwidth, found) + ([] if placed is None else placed.lines())
        print(printable_lines("\n".join(lines)))
        if any(role.place.device is None for role in plan.roles):
            print(
                "rltrain: how large the devices are is not known, so that nothing is held against it: give --device-memory",
                file=sys.stderr,
            )
    for sentence in () if found is None else found.warnings:
        print(f"rltrain: {sentence}", file=sys.stderr)
    if plan.misfits:
        raise InvalidDocuments([f"{args.file}: {sentence}" for sentence in plan.misfits])
    return 0


def _scoring(spec: RunSpec, place: Place | None) -> Scoring | None:
    """The run's reward models, where they have a place; what is not to be read of them is said, and nothing held against it:
    they may be of a family that the library alone knows, or in an image."""
    model = spec.task.reward_model
    if model is None or place is None:
        return None
    try:
        return Scoring(place, scoring_shape_of(model))
    except ModelError as error:
        sentence = f"what a reward model needs is not known, so that nothing is held against it: {error}"
        print(f"rltrain: {printable(sentence)}", file=sys.stderr)
        return Scoring(place, None)


@dataclass(frozen=True)
class _Ways:
    """What placements are planned from: the spec as its user wrote it, and how fast a device of each role is."""

    asked: RunSpec
    learner: Speed
    sampler: Speed


def _places(args: argparse.Namespace) -> tuple[RunSpec, dict[str, Place], _Ways]:
    """The run's spec, where its roles are whose memory is planned, on this machine or in the pools of a profile, and what
    placements are planned from."""
    if args.profile is None:
        spec = load_run(args.file, args.overrides).spec
        return spec, _here(spec, args.device_memory), _Ways(spec, *speeds_of(spec))
    profiles = read_profiles(args.profile)
    runs = [one for one in read_objects(args.file, args.overrides) if one.get("kind") == KIND]
    if len(runs) != 1:
        raise InvalidConfig(
            f"{args.file}: found {len(runs)} documents of kind RLTrainingRun, allowed: exactly one"
        )
    effective = as_planned(args.file, with_profile(place(runs[0], None, "default"), profiles), profiles)
    # Another's trainer has other places; samplers that share learners' devices have none of their own.
    nowhere = {LEARNER: Place(0, 0, None), SAMPLER: Place(0, 0, None)}
    places = nowhere | {
        name: _of_role(effective.role(name), args.device_memory)
        for name in (LEARNER, SAMPLER, REWARD_MODEL)
        if effective.has(name)
    }
    learner, sampler = (
        speed_of(effective.role(name if effective.has(name) else LEARNER), effective.spec)
        for name in (LEARNER, SAMPLER)
    )
    asked = as_asked(effective.spec) if effective.planned is not None else effective.spec
    return effective.spec, places, _Ways(asked, learner, sampler)


def _here(spec: RunSpec, memory: int | None) -> dict[str, Place]:
    """All on one machine: on accelerators of `memory` bytes, or where that is not said, nobody knows on what. Reward models
    without accelerators are not looked at.

    It is drawn with the devices that the run takes, which does not say that it could have no more.
    """
    device = None if memory is None else Device(memory)
    per_learner = spec.learner.ranks_per_replica
    samplers, per_sampler = (
        (spec.sampler.replicas - spec.shared_samplers) * spec.sampler.pods_per_replica,
        spec.sampler.devices_per_pod,
    )
    scoring = spec.given_task.reward_model if spec.given_task is not None else None
    judges = scoring.replicas * scoring.accelerators if scoring is not None else 0
    whole = spec.learner.replicas * per_learner + samplers * per_sampler + judges
    places = {
        LEARNER: Place(spec.learner.replicas, per_learner, device, per_node=whole),
        SAMPLER: Place(samplers, per_sampler, device, per_node=whole),
    }
    return places | ({REWARD_MODEL: Place(judges, 1, device, per_node=whole)} if judges else {})


def _accelerator(*places: Place) -> int | None:
    """Bytes of the smallest accelerator of these places; None: there are none, or of none it is known."""
    sizes = [place.device.memory for place in places if place.accelerated and place.device is not None]
    return min(sizes, default=None)


def _of_role(role: Role, memory: int | None) -> Place:
    """Pods of a role as the operator would make them."""
    pool = role.pool
    if role.accelerators == 0:
        return Place(
            role.replicas,
            0,
            Device(int(amount(role.memory)), accelerator=False),
            pool.name,
            sees_folder=False,
        )
    size = memory if memory is not None else accelerator_memory(pool)
    device = None if size is None else Device(size)
    per_node = pool.accelerators_per_node
    return Place(
        role.replicas,
        role.accelerators,
        device,
        pool.name,
        per_node,
        per_pod=per_node,
        main_memory=int(amount(role.memory)),
        sees_folder=False,
    )


def _quantity(text: str) -> int:
    try:
        value = int(amount(text))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text}, allowed: a Kubernetes quantity such as 80Gi or 80G")
    return value


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"{option}: {path} cannot be written ({error.strerror})") from None
