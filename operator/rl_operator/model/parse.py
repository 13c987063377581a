"""From objects of the API server to what the operator sees of them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from rl_api.base import amount
from rl_api.progress import STATUS_TOKEN_VARIABLE
from rl_operator.model.gangs import GANG_ANNOTATION, POD_GROUPS
from rl_operator.model.names import (
    ATTEMPT_LABEL,
    BEGAN_ANNOTATIONS,
    HASH_ANNOTATION,
    KIND,
    LEARNER,
    PROFILE_ANNOTATION,
    QUEUE_LABEL,
    ROLE_LABEL,
    SAMPLER,
    STATUS_PORT,
    TASK_WORKERS,
)
from rl_operator.model.needs import Asked, Needs
from rl_operator.model.seen import CORDONED, Container, Event, Live, Pod, Ray, WorkerGroup
from rl_operator.model.service import Gateway, RayService
from rl_operator.model.times import parse_time

_POD_GROUPS: Final = frozenset(kind for kinds in POD_GROUPS.values() for kind in kinds)
_MOST_DIGITS: Final = 6
_LONGEST: Final = 512
"""Of what an annotation says of an attempt: as long as the reference of an image may be."""


def _attempt_of(document: Mapping[str, Any]) -> int:
    text = str((document["metadata"].get("labels") or {}).get(ATTEMPT_LABEL, ""))
    # A run has no more: what is labelled so is somebody else's.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def parse_ray(document: Mapping[str, Any]) -> Ray:
    """The view of a RayJob or RayCluster."""
    metadata, status = document["metadata"], document.get("status") or {}
    kind: Literal["RayJob", "RayCluster"] = "RayJob" if document.get("kind") == "RayJob" else "RayCluster"
    cluster = (status.get("rayClusterStatus") or {}) if kind == "RayJob" else status
    failure: Mapping[str, Any] = next(
        (
            condition
            for condition in cluster.get("conditions") or ()
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        ),
        {},
    )
    spec = document.get("spec") or {}
    rays = spec.get("rayClusterSpec") or spec
    head = _container(rays.get("headGroupSpec") or {})
    said = metadata.get("annotations") or {}
    name = str(metadata["name"])
    cluster_name = str(status.get("rayClusterName") or "") if kind == "RayJob" else name
    service = str((cluster.get("head") or {}).get("serviceName") or "")
    return Ray(
        kind=kind,
        name=name,
        uid=str(metadata.get("uid", "")),
        attempt=_attempt_of(document),
        created=parse_time(metadata.get("creationTimestamp")),
        ended=parse_time(status.get("endTime")),
        deleting=metadata.get("deletionTimestamp") is not None,
        held=spec.get("suspend") is True,
        labelled=QUEUE_LABEL in (metadata.get("labels") or {}),
        job_status=str(status.get("jobStatus") or ""),
        deployment_status=str(status.get("jobDeploymentStatus") or ""),
        reason=str(status.get("reason") or "") if kind == "RayJob" else "",
        message=str(status.get("message") or "") if kind == "RayJob" else "",
        cluster=cluster_name,
        cluster_uid=str(metadata.get("uid", "")) if kind == "RayCluster" else "",
        cluster_state=str(cluster.get("state") or ""),
        cluster_reason=str(failure.get("message") or cluster.get("reason") or ""),
        head_service=service or (f"{cluster_name}-head-svc" if cluster_name else ""),
        status_port=next(
            (
                port.get("containerPort")
                for port in head.get("ports") or ()
                if port.get("name") == STATUS_PORT
            ),
            None,
        ),
        secret=_token_secret(head),
        began={name: str(said[key])[:_LONGEST] for name, key in BEGAN_ANNOTATIONS.items() if said.get(key)},
        profile=str(said.get(PROFILE_ANNOTATION) or ""),
        pod_group=str(said.get(GANG_ANNOTATION) or "") if said.get(GANG_ANNOTATION) in _POD_GROUPS else "",
        asked=_asked(rays),
        groups=frozenset(str(group.get("groupName")) for group in rays.get("workerGroupSpecs") or ()) or None,
        samplers=parse_group(document) if kind == "RayCluster" else None,
    )


def _container(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ray's container of a group's pods."""
    pod = (group.get("template") or {}).get("spec") or {}
    found: Mapping[str, Any] = (pod.get("containers") or [{}])[0]
    return found


def _asked(spec: Mapping[str, Any]) -> Asked:
    """What a run takes with this Ray cluster."""
    head = _pod_needs(spec.get("headGroupSpec") or {})
    asked = Asked(fixed=Needs(runs=1) + head)
    for group in spec.get("workerGroupSpecs") or ():
        count = _whole(group.get("maxReplicas")) * _hosts(group)
        pod = _pod_needs(group)
        if group.get("groupName") == SAMPLER:
            asked = replace(asked, sampler=Needs(samplers=1) + pod, most=count)
        else:
            name = group.get("groupName")
            one = Needs(learners=int(name == LEARNER), task_workers=int(name in TASK_WORKERS))
            asked = replace(asked, fixed=asked.fixed + (one + pod).times(count))
    return asked


def _hosts(group: Mapping[str, Any]) -> int:
    """Pods of each replica of a worker group: KubeRay's own default is 1, which older objects may not say."""
    return max(1, _whole(group.get("numOfHosts")))


def service_asked(spec: Mapping[str, Any]) -> Needs:
    """What a service takes with this Ray cluster: all of its pods, and no run."""
    asked = _asked(spec)
    return replace(asked.with_samplers(asked.most), runs=0)


def _pod_needs(group: Mapping[str, Any]) -> Needs:
    """Accelerators and disk of one of a group's pods."""
    containers = ((group.get("template") or {}).get("spec") or {}).get("containers") or ()
    storage = 0
    for container in containers:
        disk = ((container.get("resources") or {}).get("limits") or {}).get("ephemeral-storage")
        with contextlib.suppress(ValueError):  # not as we write it
            storage += int(amount(str(disk or "0")))
    return Needs(
        accelerators=_whole((group.get("rayStartParams") or {}).get("num-gpus")),
        storage=storage,
    )


def _whole(value: object) -> int:
    """A number of pods or devices; 0 where somebody has made something else of it."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _token_secret(container: Mapping[str, Any]) -> str:
    """Name of the Secret from which an earlier operator gave a head the token of its status server; empty: none did."""
    for variable in container.get("env") or ():
        if variable.get("name") == STATUS_TOKEN_VARIABLE:
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
            return str(reference.get("name") or "")
    return ""


UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_REMOVED: Final[Mapping[str, str]] = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler",
    "karpenter.sh/disrupted": "Karpenter",
    "karpenter.sh/disruption": "Karpenter",  # before its version 1
    "cloud.google.com/impending-node-termination": "Google Cloud",
}
"""Taints of a node that goes soon, and who takes it away."""


def parse_node(document: Mapping[str, Any]) -> str:
    """Why no more pods are put on a node that is to be emptied; empty: they are."""
    spec = document.get("spec") or {}
    taints = {taint.get("key") for taint in spec.get("taints") or ()}
    for key, who in _REMOVED.items():
        if key in taints:
            return f"is about to be removed by {who}"
    return CORDONED if spec.get("unschedulable") is True or UNSCHEDULABLE in taints else ""


def parse_pod(document: Mapping[str, Any]) -> Pod:
    """The view of a pod."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    # Kubernetes marks a pod that it takes away before it deletes it: its node was lost, drained or needed for others.
    taken = conditions.get("DisruptionTarget") or {}
    if taken.get("status") != "True":
        taken = {}
    first = (spec.get("containers") or [{}])[0]
    return Pod(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        role=str((metadata.get("labels") or {}).get(ROLE_LABEL, "")),
        attempt=_attempt_of(document),
        # All pods of a cluster have the same.
        owner=sys.intern(controller_of(document, "RayCluster")),
        # Behind that of a node there are others, such as the kubelet.
        ip="" if spec.get("hostNetwork") else str(status.get("podIP") or ""),
        phase=str(status.get("phase") or ""),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        node=str(spec.get("nodeName") or ""),
        created=parse_time(metadata.get("creationTimestamp")),
        started=parse_time(status.get("startTime")),
        deleting=parse_time(metadata.get("deletionTimestamp")),
        reason=str(status.get("reason") or taken.get("reason") or ""),
        message=str(status.get("message") or taken.get("message") or ""),
        unschedulable=(
            str(scheduled.get("message") or "") if scheduled.get("reason") == "Unschedulable" else ""
        ),
        gates=tuple(str(gate.get("name")) for gate in spec.get("schedulingGates") or ()),
        stays=any(
            one.get("key") == UNSCHEDULABLE or (one.get("operator") == "Exists" and not one.get("key"))
            for one in spec.get("tolerations") or ()
        ),
        memory_limit=str(((first.get("resources") or {}).get("limits") or {}).get("memory", "")),
        containers=tuple(
            _parse_container(container)
            for key in ("initContainerStatuses", "containerStatuses")
            for container in status.get(key) or ()
        ),
    )


def _parse_container(status: Mapping[str, Any]) -> Container:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    return Container(
        name=str(status.get("name", "")),
        image=str(status.get("image", "")),
        ready=status.get("ready") is True,
        restarts=int(status.get("restartCount") or 0),
        waiting=str(waiting.get("reason") or ""),
        waiting_message=str(waiting.get("message") or ""),
        ended=str(ended.get("reason") or ""),
        exit_code=ended.get("exitCode"),
        ended_message=str(ended.get("message") or ""),
    )


def parse_event(document: Mapping[str, Any]) -> Event:
    """The view of a core/v1 Event."""
    about = document.get("involvedObject") or {}
    times = (
        (document.get("series") or {}).get("lastObservedTime"),
        document.get("lastTimestamp"),
        document.get("eventTime"),
        (document.get("metadata") or {}).get("creationTimestamp"),
    )
    return Event(
        kind=str(about.get("kind") or ""),
        name=str(about.get("name") or ""),
        reason=str(document.get("reason") or ""),
        message=str(document.get("message") or ""),
        time=next((time for time in map(parse_time, times) if time is not None), None),
    )


def controller_of(document: Mapping[str, Any], kind: str) -> str:
    """Uid of what controls an object, if it is of this kind; else empty."""
    owners = document["metadata"].get("ownerReferences") or ()
    return next(
        (str(one.get("uid")) for one in owners if one.get("controller") and one.get("kind") == kind), ""
    )


def is_owned(document: Mapping[str, Any], uid: str) -> bool:
    """Whether the object with this uid is one of an object's owners."""
    owners = document["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def hash_of(document: Mapping[str, Any]) -> str:
    """Hash of an object as it was rendered."""
    return str((document["metadata"].get("annotations") or {}).get(HASH_ANNOTATION, ""))


def parse_live(document: Mapping[str, Any]) -> Live:
    """The view of an object that the operator renders."""
    uid = str(document["metadata"].get("uid", ""))
    return Live(uid=uid, hash=hash_of(document), spec=document.get("spec") or {})


def parse_group(document: Mapping[str, Any], name: str = SAMPLER) -> WorkerGroup | None:
    """The worker group of this name of a RayCluster; None: it has none."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    for index, group in enumerate(spec.get("workerGroupSpecs") or ()):
        if group.get("groupName") == name:
            return WorkerGroup(
                cluster=str(metadata["name"]),
                uid=str(metadata.get("uid", "")),
                owner=next(
                    filter(None, (controller_of(document, kind) for kind in ("RayJob", KIND, "RayService"))),
                    "",
                ),
                index=index,
                replicas=int(group.get("replicas") or 0),
                most=int(group.get("maxReplicas") or 0),
                name=name,
                hosts=_hosts(group),
            )
    return None


def _serve_problem(application: Mapping[str, Any]) -> str:
    """Why an application of Ray Serve does not run: the error that ended its copies says more than its own message."""
    deployments = application.get("serveDeploymentStatuses") or {}
    for one in deployments.values() if isinstance(deployments, Mapping) else ():
        if isinstance(one, Mapping) and one.get("status") in ("DEPLOY_FAILED", "UNHEALTHY"):
            lines = [line.strip() for line in str(one.get("message") or "").splitlines() if line.strip()]
            if lines:  # a traceback, whose last line is the error
                return re.sub(r"^rl_api\.errors\.\w+: ", "", lines[-1])
    return str(application.get("message") or application["status"])


def parse_ray_service(document: Mapping[str, Any]) -> RayService:
    """The view of a RayService."""
    metadata, status = document["metadata"], document.get("status") or {}
    active, pending = (status.get(f"{name}ServiceStatus") or {} for name in ("active", "pending"))
    told = active if active.get("applicationStatuses") else pending
    applications = {
        str(name): one
        for name, one in (told.get("applicationStatuses") or {}).items()
        if isinstance(one, Mapping)
    }
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    # Whether KubeRay has looked at the object as it is now.
    told_all = status.get("observedGeneration") == metadata.get("generation")
    failed = [
        f"{name}: {_serve_problem(one)}"
        for name, one in sorted(applications.items())
        if one.get("status") in ("DEPLOY_FAILED", "UNHEALTHY")
    ]
    if ready.get("reason") == "ValidationFailed":
        failed = [str(ready.get("message") or "KubeRay refuses the RayService")]
    return RayService(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        live=parse_live(document),
        active=str(active.get("rayClusterName") or ""),
        pending=str(pending.get("rayClusterName") or ""),
        ready=ready.get("status") == "True",
        share=_percent(pending.get("trafficRoutedPercent")),
        going_back=(conditions.get("RollbackInProgress") or {}).get("status") == "True",
        steps=_percent((active or pending).get("targetCapacity")) is not None
        or not told_all
        or bool(pending),
        problem="; ".join(failed),
        applications={name: str(one.get("status") or "") for name, one in applications.items()},
        profile=str((metadata.get("annotations") or {}).get(PROFILE_ANNOTATION) or ""),
        asked=service_asked((document.get("spec") or {}).get("rayClusterConfig") or {}),
    )


def parse_gateway(document: Mapping[str, Any]) -> Gateway:
    """The view of a Gateway."""
    status = document.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or () if isinstance(one, Mapping)}
    wrong = [
        f"{kind}: {one.get('message') or one.get('reason') or 'nobody has looked at it'}"
        for kind in ("Accepted", "Programmed")
        if (one := conditions.get(kind) or {}).get("status") != "True"
    ]
    found = [one for one in status.get("addresses") or () if isinstance(one, Mapping)]
    return Gateway(str(found[0].get("value") or "") if found else "", "; ".join(wrong[:1]))


def _percent(value: object) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100
    return int(value) if good and isinstance(value, int) else None
