"""What all runs of a namespace may have at once: what a run holds, and when it waits for others. Pure.

A run that would exceed a limit of its namespace waits, and those that came after it wait behind it: so that many small
ones do not pass a large one for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rl_api.profile import NamespaceLimitsSpec
from rl_api.progress import Attempt
from rl_operator.decide.diagnose import Diagnosis
from rl_operator.model.decision import Decision
from rl_operator.model.names import SAMPLER
from rl_operator.model.needs import Needs, Others
from rl_operator.model.seen import Ray, World
from rl_operator.plan.effective import Effective, Plan
from rl_operator.plan.limits import exceeded, needs_of
from rl_operator.plan.profile import title

WAITS: Final = "NamespaceLimit"
"""Reason of ClusterReady while a run waits for others of its namespace."""


def no_room(effective: Effective, others: Others) -> Diagnosis | None:
    """Why a run must wait for others of its namespace; None: it need not."""
    limits, needs = effective.limits.per_namespace, needs_of(effective.roles)
    over = next(exceeded(limits, others.held + needs), None)
    if over is not None:
        what, together, most = over
        return Diagnosis(
            WAITS,
            f"the runs of namespace {effective.namespace} would have {together} {what} with this one, allowed at once by "
            f"{title(effective.spec.profile)}: {most}; it begins when enough of them have ended",
        )
    if others.first and limits != NamespaceLimitsSpec():
        return Diagnosis(
            WAITS,
            f"run {others.first}, which is older, waits for others of namespace {effective.namespace} to end; runs begin in "
            "the order in which they were made",
        )
    return None


def samplers_with_room(effective: Effective, ray: Ray, others: Others) -> int:
    """Samplers that the run may have, of those that it wants: never fewer than it has."""
    role, limits = effective.role(SAMPLER), effective.limits.per_namespace
    has = ray.samplers.replicas if ray.samplers is not None else 0
    fixed = others.held + needs_of([one for one in effective.roles if one.name != SAMPLER])
    wanted = role.replicas
    while wanted > has and next(exceeded(limits, fixed + role.pod.times(wanted)), None) is not None:
        wanted -= 1
    return wanted


def held(world: World, attempts: Iterable[Attempt], plan: Plan, decision: Decision | None = None) -> Needs:
    """What a run with these attempts has, or will have when `decision` is carried out."""
    ended = {attempt.number for attempt in attempts if attempt.end_time is not None}
    effective = plan if isinstance(plan, Effective) else None
    total = Needs()
    for ray in world.rays:
        if ray.attempt not in ended:
            count = _samplers(ray, effective)
            if decision is not None and decision.scale is not None:
                count = max(count, decision.scale.replicas)
            total += ray.asked.with_samplers(count)
    if decision is not None and effective is not None and decision.begins:
        total += needs_of(effective.roles)
    return total


def _samplers(ray: Ray, effective: Effective | None) -> int:
    """Samplers that an attempt has, or grows to: fewer than it began with where the run wants fewer now."""
    group = ray.samplers
    most = ray.asked.most if group is None else max(ray.asked.most, group.most)
    if group is None or effective is None or not effective.elastic:
        return most
    return min(most, max(group.replicas, effective.role(SAMPLER).replicas))


def waits(decision: Decision) -> bool:
    """Whether the run is made to wait for others of its namespace."""
    return any((one.type, one.reason) == ("ClusterReady", WAITS) for one in decision.status.conditions)
