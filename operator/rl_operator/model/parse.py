"""From objects of the API server to what the operator sees of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rl_operator.model.names import ATTEMPT_LABEL, HASH_ANNOTATION, ROLE_LABEL, SAMPLER, STATUS_PORT
from rl_operator.model.seen import Container, Event, Live, Pod, Ray, SamplerGroup
from rl_operator.model.times import parse_time


def _attempt_of(document: Mapping[str, Any]) -> int:
    text = str((document["metadata"].get("labels") or {}).get(ATTEMPT_LABEL, ""))
    return int(text) if text.isascii() and text.isdigit() else 0


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
    name = str(metadata["name"])
    cluster_name = str(status.get("rayClusterName") or "") if kind == "RayJob" else name
    service = str((cluster.get("head") or {}).get("serviceName") or "")
    return Ray(
        kind=kind,
        name=name,
        uid=str(metadata.get("uid", "")),
        attempt=_attempt_of(document),
        created=parse_time(metadata.get("creationTimestamp")),
        deleting=metadata.get("deletionTimestamp") is not None,
        held=(document.get("spec") or {}).get("suspend") is True,
        job_status=str(status.get("jobStatus") or ""),
        deployment_status=str(status.get("jobDeploymentStatus") or ""),
        reason=str(status.get("reason") or "") if kind == "RayJob" else "",
        message=str(status.get("message") or "") if kind == "RayJob" else "",
        cluster=cluster_name,
        cluster_state=str(cluster.get("state") or ""),
        cluster_reason=str(failure.get("message") or cluster.get("reason") or ""),
        head_service=service or (f"{cluster_name}-head-svc" if cluster_name else ""),
        dashboard_url=str(status.get("dashboardURL") or ""),
        status_port=_status_port(document),
        samplers=parse_group(document) if kind == "RayCluster" else None,
    )


def _status_port(document: Mapping[str, Any]) -> int | None:
    spec = document.get("spec") or {}
    head = (spec.get("rayClusterSpec") or spec).get("headGroupSpec") or {}
    containers = ((head.get("template") or {}).get("spec") or {}).get("containers") or [{}]
    ports = containers[0].get("ports") or ()
    return next((port.get("containerPort") for port in ports if port.get("name") == STATUS_PORT), None)


def parse_pod(document: Mapping[str, Any], *, gone: bool = False) -> Pod:
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
        phase=str(status.get("phase") or ""),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        node=str(spec.get("nodeName") or ""),
        created=parse_time(metadata.get("creationTimestamp")),
        deleting=parse_time(metadata.get("deletionTimestamp")),
        gone=gone,
        reason=str(status.get("reason") or taken.get("reason") or ""),
        message=str(status.get("message") or taken.get("message") or ""),
        unschedulable=(
            str(scheduled.get("message") or "") if scheduled.get("reason") == "Unschedulable" else ""
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


def parse_live(document: Mapping[str, Any]) -> Live:
    """The view of an object that the operator renders."""
    metadata = document["metadata"]
    return Live(
        uid=str(metadata.get("uid", "")),
        hash=str((metadata.get("annotations") or {}).get(HASH_ANNOTATION, "")),
        spec=document.get("spec") or {},
    )


def parse_group(document: Mapping[str, Any]) -> SamplerGroup | None:
    """The samplers of a RayCluster; None: it has none."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    owners = metadata.get("ownerReferences") or ()
    for index, group in enumerate(spec.get("workerGroupSpecs") or ()):
        if group.get("groupName") == SAMPLER:
            return SamplerGroup(
                cluster=str(metadata["name"]),
                uid=str(metadata.get("uid", "")),
                owner=next((str(one.get("uid")) for one in owners if one.get("controller")), ""),
                index=index,
                replicas=int(group.get("replicas") or 0),
                most=int(group.get("maxReplicas") or 0),
            )
    return None
