"""Gang scheduling: the RayJob or RayCluster of an attempt, made so that one scheduler places all of its pods or none.

One file for each scheduler, one function in each: from a gang to what is added for it. Everything that a scheduler looks at
stands on the pods, or in objects of our own: it does not depend on how KubeRay was installed, but where that was told of
another scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_api.gang import GangScheduler
from rl_operator.model.gangs import GANG_ANNOTATION, POD_GROUPS
from rl_operator.model.names import Manifest, attempt_name
from rl_operator.plan.effective import Effective
from rl_operator.render.gang.kai import kai
from rl_operator.render.gang.kubernetes import kubernetes
from rl_operator.render.gang.parts import Gang, Placement, PodParts, head_first
from rl_operator.render.gang.scheduler_plugins import scheduler_plugins
from rl_operator.render.gang.volcano import volcano
from rl_operator.render.gang.yunikorn import yunikorn


def as_gang(
    effective: Effective, attempt: int, ray: Manifest, served: str = "", preemptions: int = 0
) -> list[Manifest]:
    """The RayJob or RayCluster `ray`, the last, with what has to be there before it; without a gang in the profile only it.

    `served`: the kind of PodGroup in `POD_GROUPS` that the cluster knows; empty: the newest. `preemptions`: how
    often the attempt has lost its pods, and is made anew.
    """
    wanted = effective.profile.gang
    if wanted is None:
        return [ray]
    spec = ray["spec"]
    gang = Gang(
        name=attempt_name(effective.name, attempt),
        metadata=effective.attempt_metadata(attempt),
        uid=effective.uid,
        preemptions=preemptions,
        members=tuple(head_first(spec.get("rayClusterSpec", spec))),
        queue=wanted.queue,
        priority_class=effective.spec.scheduling.priority_class,
    )
    kinds = POD_GROUPS.get(wanted.scheduler, ())
    kind = served if served in kinds else (kinds[0] if kinds else "")
    placement = _place(gang, wanted.scheduler, kind)
    marks = {GANG_ANNOTATION: kind} if kind else {}
    made = _placed(ray, placement) | {"metadata": _marked(ray["metadata"], placement.labels, marks)}
    return [made] if placement.pod_group is None else [placement.pod_group, made]


def _place(gang: Gang, scheduler: GangScheduler, kind: str) -> Placement:
    match scheduler:
        case "volcano":
            return volcano(gang, kind)
        case "kai":
            return kai(gang)
        case "yunikorn":
            return yunikorn(gang)
        case "schedulerPlugins":
            return scheduler_plugins(gang)
        case "kubernetes":
            return kubernetes(gang, kind)


def _placed(ray: Manifest, placement: Placement) -> Manifest:
    """`ray` with what its pods carry for their scheduler."""
    spec: Manifest = ray["spec"]
    cluster: Manifest = spec.get("rayClusterSpec", spec)
    head = cluster["headGroupSpec"]
    placed = cluster | {
        "headGroupSpec": head | {"template": _with(head["template"], placement.pods["headgroup"])},
        "workerGroupSpecs": [
            group | {"template": _with(group["template"], placement.pods[group["groupName"]])}
            for group in cluster["workerGroupSpecs"]
        ],
    }
    return ray | {"spec": spec | {"rayClusterSpec": placed} if "rayClusterSpec" in spec else placed}


def _with(template: Manifest, parts: PodParts) -> Manifest:
    before: Manifest = template["spec"]
    spec = before | dict(parts.spec)
    # A pod that Kueue gives its place waits for both.
    if gates := [gate for one in (before, parts.spec) for gate in one.get("schedulingGates", ())]:
        spec["schedulingGates"] = gates
    return {"metadata": _marked(template["metadata"], parts.labels, parts.annotations), "spec": spec}


def _marked(metadata: Manifest, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Manifest:
    found: dict[str, Any] = metadata | {"labels": metadata["labels"] | dict(labels)}
    return found | (
        {"annotations": metadata.get("annotations", {}) | dict(annotations)} if annotations else {}
    )
