"""The gang that the pods of an attempt are: what its scheduler must have, and why it waits. Pure.

`operator/rl_operator/render/gang` makes one; who places it is the profile's choice (`gang.scheduler`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rl_api.gang import GangScheduler
from rl_operator.decide.diagnose import Diagnosis, one_line, ranked
from rl_operator.decide.shortage import short_of, short_role
from rl_operator.model.gangs import GATE, POD_GROUPS, pod_group_name, version_of_kind
from rl_operator.model.seen import Pod, World
from rl_operator.plan.effective import Effective
from rl_operator.plan.profile import title

_TITLES: Final[dict[GangScheduler, str]] = {
    "volcano": "Volcano",
    "kai": "KAI Scheduler",
    "yunikorn": "YuniKorn",
    "schedulerPlugins": "the coscheduling scheduler",
    "kubernetes": "Kubernetes' scheduler",
}

_INSTALL: Final[dict[GangScheduler, str]] = {
    "volcano": "install Volcano",
    "schedulerPlugins": "install scheduler-plugins",
    "kubernetes": "it takes Kubernetes 1.36 or later with that API and the feature gates GenericWorkload and GangScheduling",
}

_OF_PLACE: Final = ("Unschedulable", "GangWaits")


def missing_pod_group(effective: Effective, known: str | None) -> Diagnosis | None:
    """Why no attempt can begin: of the PodGroups of the profile's gang the cluster knows only `known`, empty for none (None:
    not asked for)."""
    gang = effective.profile.gang
    kinds = POD_GROUPS.get(gang.scheduler, ()) if gang is not None else ()
    if gang is None or not kinds or known is None or known in kinds:
        return None
    versions = " or ".join("/".join(version_of_kind(kind)) for kind in reversed(kinds))
    return Diagnosis(
        "GangSchedulerMissing",
        f"{title(effective.profile_name)} has gang.scheduler {gang.scheduler}, and this cluster has no PodGroup in "
        f"{versions}: {_INSTALL[gang.scheduler]}, or choose another one",
    )


def with_gang(
    found: list[Diagnosis], world: World, attempt: int, effective: Effective | None
) -> list[Diagnosis]:
    """What was `found` of an attempt's pods each on its own, with what only all of them together explain."""
    gang = effective.profile.gang if effective is not None else None
    if effective is None or gang is None:
        return found
    count = sum(role.at_start for role in effective.roles)
    who = f"{_TITLES[gang.scheduler]} places all {count} pods of the attempt or none"
    waiting = [pod for pod in world.pods_of(attempt) if pod.phase == "Pending" and not pod.node]
    waiting.sort(key=lambda pod: (pod.role, pod.name))
    if waiting and not any(one.reason == "Unschedulable" for one in found):
        found = [*found, *_of_group(world, attempt, effective, waiting)]
        found = found or [_waits(waiting[0])]
    told = (
        replace(one, message=f"{one.message}; {who}") if one.reason in _OF_PLACE else one for one in found
    )
    return ranked(told)


def _of_group(world: World, attempt: int, effective: Effective, waiting: Sequence[Pod]) -> list[Diagnosis]:
    """What is said of the attempt's PodGroup."""
    ray = world.ray(attempt)
    name = pod_group_name(ray.pod_group, ray.name) if ray is not None and ray.pod_group else ""
    said = next(
        (one.message for one in world.events if name and (one.kind, one.name) == ("PodGroup", name)), ""
    )
    if not said:
        return []
    role, text = short_role(said, None, effective.roles), one_line(said, 300)
    if role is None:
        return [Diagnosis("GangWaits", f"{waiting[0].role}: no room for all pods [{text}]", waiting[0].role)]
    short = ", ".join(short_of(said))
    return [
        Diagnosis(
            "Unschedulable", f"{role.name}: too little {short} is free on {role.where} [{text}]", role.name
        )
    ]


def _waits(pod: Pod) -> Diagnosis:
    if GATE in pod.gates:
        why = (
            f"pod {pod.name} keeps its scheduling gate {GATE}, as nothing makes it a member of its PodGroup: the chart's "
            "value gang.schedulers must name kubernetes"
        )
        return Diagnosis("NotInGang", f"{pod.role}: {why}", pod.role)
    return Diagnosis("GangWaits", f"{pod.role}: pod {pod.name} is not placed yet", pod.role)
