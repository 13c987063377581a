"""What all runs and services of a namespace may have at once: what each holds, and when it waits for others. Pure.

One that would exceed a limit of its namespace waits, and those that came after it wait behind it: so that many small
ones do not pass a large one for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rl_api.profile import NamespaceLimitsSpec
from rl_api.progress import Attempt, Condition
from rl_operator.decide.diagnose import Diagnosis
from rl_operator.model.decision import Decision
from rl_operator.model.names import SAMPLER
from rl_operator.model.needs import NOTHING, Needs, Others
from rl_operator.model.seen import Ray, World
from rl_operator.model.service import RayService, ServiceDecision, ServiceWorld
from rl_operator.plan.effective import Effective, Plan
from rl_operator.plan.limits import exceeded, limited, needs_of, pods_need
from rl_operator.plan.profile import title
from rl_operator.plan.service import EffectiveService, ServicePlan

WAITS: Final = "NamespaceLimit"
"""Reason of ClusterReady while a run or a service waits for others of its namespace."""

UPDATE_WAITS: Final = "UpdateWaits"
"""Reason of ClusterReady while a service goes on as it was, as there is no room for what it is to become."""


def no_room(effective: Effective, others: Others) -> Diagnosis | None:
    """Why a run must wait for others of its namespace; None: it need not."""
    place = _Place(effective.namespace, effective.spec.profile, effective.limits.per_namespace)
    return place.no_room(needs_of(effective.roles), others)


def no_room_for_service(
    service: EffectiveService, ray: RayService | None, others: Others
) -> Diagnosis | None:
    """Why a service must wait for others of its namespace; None: it need not.

    One that has its pods keeps them. What is to become of them waits where it takes more than they have: a second cluster
    beside the first one, for as long as an update takes, is let be.
    """
    place = _Place(service.namespace, service.profile_name, service.profile.limits.per_namespace)
    needs = pods_need(service.roles)
    if ray is None:
        return place.no_room(needs, others)
    moved = ray.profile not in ("", service.profile_name)
    over = place.over(needs, others, NOTHING if moved else ray.asked)
    if not over:
        return None
    return Diagnosis(
        UPDATE_WAITS, f"{over}; the service goes on as it was until there is room for what it is to become"
    )


@dataclass(frozen=True)
class _Place:
    """A namespace under a profile."""

    namespace: str
    profile: str | None
    limits: NamespaceLimitsSpec

    def no_room(self, needs: Needs, others: Others) -> Diagnosis | None:
        """Why one with these needs cannot begin."""
        if over := self.over(needs, others):
            return Diagnosis(WAITS, f"{over}; it begins when enough of them have ended or were deleted")
        # Who takes nothing of what is limited is in nobody's way.
        if others.first and limited(self.limits, needs):
            return Diagnosis(
                WAITS,
                f"{others.first}, which is older, waits for others of namespace {self.namespace} to end; runs and services "
                "begin in the order in which they were made",
            )
        return None

    def over(self, needs: Needs, others: Others, has: Needs = NOTHING) -> str:
        """What there would be too much of with one that has grown to these needs; empty: nothing."""
        total = (others.held + needs).where_more(needs, has)
        for what, together, most in exceeded(self.limits, total):
            return (
                f"the runs and services of namespace {self.namespace} would have {together} {what} with this one, allowed "
                f"at once by {title(self.profile)}: {most}"
            )
        return ""


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
    if effective is None or total != NOTHING:
        return total
    # One that stands in its queue holds its turn among those of its namespace, as one does whose RayJob is held back.
    made = decision is not None and (decision.begins or decision.enters)
    kept = world.workload is not None and world.workload.finished is None
    return needs_of(effective.roles) if made or kept else total


def _samplers(ray: Ray, effective: Effective | None) -> int:
    """Samplers that an attempt has, or grows to: fewer than it began with where the run wants fewer now."""
    group = ray.samplers
    most = ray.asked.most if group is None else max(ray.asked.most, group.most)
    if group is None or group.hosts > 1 or effective is None or not effective.elastic:
        return most
    return min(most, max(group.replicas, effective.role(SAMPLER).replicas))


def waits(conditions: Iterable[Condition]) -> bool:
    """Whether a run or service with these conditions is made to wait for others of its namespace."""
    found = {one.type: one for one in conditions}
    accepted, ready = found.get("Accepted"), found.get("ClusterReady")
    # One that can no longer be carried out keeps what was said of it last, and nobody behind it.
    return ready is not None and ready.reason == WAITS and (accepted is None or accepted.status == "True")


def held_by_service(
    world: ServiceWorld, plan: ServicePlan, decision: ServiceDecision | None = None
) -> tuple[str | None, Needs]:
    """What a service has, or will have when `decision` is carried out, and the profile for which that counts: all of its
    Ray clusters, and at least what it was asked for last."""
    ray = world.ray
    total = sum(world.asked, NOTHING)
    if ray is not None:
        total = total.at_least(ray.asked)
    written = () if decision is None else (*decision.create, *decision.apply)
    if isinstance(plan, EffectiveService) and any(one["kind"] == "RayService" for one in written):
        return plan.profile_name, total.at_least(pods_need(plan.roles))
    return (ray.profile if ray is not None and ray.profile else plan.profile_name), total
