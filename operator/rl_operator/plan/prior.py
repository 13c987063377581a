"""The placement with which a run's first attempt begins, where nothing was measured and it may change it later. Pure.

What models are is for those to know who load them: here one of 7 B stands for any, so that this is good for ratios, and
nothing is said of seconds or memory (`rl_api.planner.prior`). Runs that differ in their name or seed alone are planned once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from rl_api.placement_status import KeptPlacement, PlannedPlacement
from rl_api.planner.first import begins_by_prior, first_placement
from rl_api.planner.prior import prior_of
from rl_api.run import Metadata, RLTrainingRun, RunSpec
from rl_api.sizes.speeds import Speed, accelerator_speed, cores
from rl_operator.model.names import LEARNER, SAMPLER
from rl_operator.plan.planned import placement_digest
from rl_operator.plan.roles import Role

_PLANS_KEPT: Final = 256


def has_begun(run: Mapping[str, Any]) -> bool:
    """Whether there was an attempt: it has a placement, that of its spec or one that was planned. Any JSON."""
    status = run.get("status")
    return isinstance(status, Mapping) and bool(status.get("attempts") or status.get("earlier"))


def by_prior(spec: RunSpec, roles: Sequence[Role]) -> KeptPlacement | None:
    """What a run's first attempt has in place of its spec's placement; None: that. `spec`: as it is carried out."""
    if not begins_by_prior(spec):
        return None
    speeds = {role.name: speed_of(role, spec) for role in roles if role.name in (LEARNER, SAMPLER)}
    seedless = spec.model_copy(update={"seed": RunSpec.model_fields["seed"].default})
    asked = seedless.model_dump_json(by_alias=True, exclude_none=True)
    planned = _planned(asked, speeds[LEARNER], speeds[SAMPLER])
    if planned is None:
        return None
    return KeptPlacement(**planned.model_dump(), attempt=0, instead_of=placement_digest(spec.placement))


def speed_of(role: Role, spec: RunSpec) -> Speed:
    """Of one device of a role."""
    if role.accelerators:
        return accelerator_speed(role.pool)
    return cores(getattr(spec, role.name).threads)


@lru_cache(_PLANS_KEPT)
def _planned(asked: str, learner: Speed, sampler: Speed) -> PlannedPlacement | None:
    spec = RunSpec.model_validate_json(asked)
    run = RLTrainingRun(metadata=Metadata(name="planned"), spec=spec)
    first = first_placement(run, prior_of(spec, None, learner, sampler))
    return first.planned if first is not None else None
