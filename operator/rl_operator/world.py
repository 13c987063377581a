"""What the operator sees of one run, and what it decides to do: plain values, no client in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from rl_api.progress import CheckpointStatus, Progress, RunStatus
from rl_operator.render.names import ATTEMPT_LABEL, HASH_ANNOTATION, HEAD, ROLE_LABEL, Manifest
from rl_operator.scaling import SamplerGroup, Scale, parse_group


def parse_time(text: object) -> datetime | None:
    """A time as the API server writes it; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _attempt_of(document: Mapping[str, Any]) -> int:
    text = str((document["metadata"].get("labels") or {}).get(ATTEMPT_LABEL, ""))
    return int(text) if text.isascii() and text.isdigit() else 0


@dataclass(frozen=True)
class Ray:
    """RayJob or RayCluster of one attempt."""

    kind: Literal["RayJob", "RayCluster"]
    name: str
    uid: str
    attempt: int
    created: datetime | None = None
    deleting: bool = False
    suspended: bool = False
    """Suspended by a queue, which waits for quota."""
    job_status: str = ""
    deployment_status: str = ""
    reason: str = ""
    message: str = ""
    cluster: str = ""
    """Name of the RayCluster."""
    cluster_state: str = ""
    cluster_reason: str = ""
    """Message of the RayCluster's ReplicaFailure condition."""
    head_service: str = ""
    dashboard_url: str = ""
    samplers: SamplerGroup | None = None
    """Samplers that KubeRay was asked for; None: not known yet."""

    @property
    def submitted(self) -> bool:
        """Whether the job was submitted, so that a head must have been there."""
        return self.deployment_status == "Running"

    @property
    def at_work(self) -> bool:
        """Whether all pods were there once, so that training, or a person, has begun."""
        return self.submitted if self.kind == "RayJob" else self.cluster_state == "ready"


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
        suspended=(document.get("spec") or {}).get("suspend") is True,
        job_status=str(status.get("jobStatus") or ""),
        deployment_status=str(status.get("jobDeploymentStatus") or ""),
        reason=str(status.get("reason") or "") if kind == "RayJob" else "",
        message=str(status.get("message") or "") if kind == "RayJob" else "",
        cluster=cluster_name,
        cluster_state=str(cluster.get("state") or ""),
        cluster_reason=str(failure.get("message") or cluster.get("reason") or ""),
        head_service=service or (f"{cluster_name}-head-svc" if cluster_name else ""),
        dashboard_url=str(status.get("dashboardURL") or ""),
        samplers=parse_group(document) if kind == "RayCluster" else None,
    )


@dataclass(frozen=True)
class Container:
    """State of one container, init containers included."""

    name: str
    image: str = ""
    ready: bool = False
    restarts: int = 0
    waiting: str = ""
    """Reason of waiting, such as ImagePullBackOff."""
    waiting_message: str = ""
    ended: str = ""
    """Reason of the last end, such as OOMKilled; of the end before the last restart too."""
    exit_code: int | None = None
    ended_message: str = ""


@dataclass(frozen=True)
class Pod:
    """One pod of the run."""

    name: str
    uid: str
    role: str
    attempt: int
    phase: str = ""
    ready: bool = False
    node: str = ""
    created: datetime | None = None
    deleting: datetime | None = None
    """When it must be gone: deletion time, grace period included."""
    gone: bool = False
    """No longer there; kept in mind for a while for what its end says."""
    reason: str = ""
    """Such as Evicted, or DeletionByTaintManager for a node that was lost."""
    message: str = ""
    unschedulable: str = ""
    """Message of the scheduler."""
    memory_limit: str = ""
    containers: tuple[Container, ...] = ()


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


@dataclass(frozen=True)
class Event:
    """A warning about one of the run's objects."""

    kind: str
    name: str
    reason: str
    message: str
    time: datetime | None = None


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


@dataclass(frozen=True)
class Reading:
    """What the driver said when it was asked last."""

    attempt: int
    time: datetime
    progress: Progress
    checkpoint: CheckpointStatus | None = None


@dataclass(frozen=True)
class Ask:
    """The wish for a checkpoint that was brought to the driver, and what became of it."""

    attempt: int
    state: Literal["running", "done", "refused", "absent", "failed"]
    """refused: asking again is no use; failed: it may be; absent: no driver listens now."""
    message: str = ""


@dataclass(frozen=True)
class Live:
    """An object of the run that is there."""

    uid: str
    hash: str
    spec: Mapping[str, Any]


def parse_live(document: Mapping[str, Any]) -> Live:
    """The view of an object that the operator renders."""
    metadata = document["metadata"]
    return Live(
        uid=str(metadata.get("uid", "")),
        hash=str((metadata.get("annotations") or {}).get(HASH_ANNOTATION, "")),
        spec=document.get("spec") or {},
    )


@dataclass(frozen=True)
class World:
    """Everything that decides what happens next with a run."""

    run: Mapping[str, Any]
    """The RLTrainingRun as the API server holds it."""
    rays: tuple[Ray, ...] = ()
    pods: tuple[Pod, ...] = ()
    events: tuple[Event, ...] = ()
    live: Mapping[tuple[str, str], Live] = field(default_factory=dict)
    """Objects by kind and name."""
    claim_exists: bool | None = None
    """Whether the checkpoint claim is there; None: not looked for."""
    token: str | None = None
    """Token in the run's Secret; None: there is no Secret."""
    new_token: str = ""
    """A fresh random token, for when there is none yet."""
    kuberay: bool = True
    """Whether the cluster knows RayJob and RayCluster."""
    reading: Reading | None = None
    reading_error: str = ""
    """Why the driver did not answer the last time."""
    ask: Ask | None = None
    refusal: str = ""
    """What the API server said when an object of the run could not be written."""
    scale_refusal: str = ""
    """What it said when KubeRay was to be asked for another number of samplers."""
    log_tail: Mapping[str, str] = field(default_factory=dict)
    """Last log lines of containers that crashed, by pod name."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the run."""
        found: Mapping[str, Any] = self.run["metadata"]
        return found

    @property
    def spec(self) -> Mapping[str, Any]:
        """Spec of the run, as a person wrote it; empty where it is no object."""
        spec = self.run.get("spec")
        return spec if isinstance(spec, Mapping) else {}

    @property
    def suspended(self) -> bool:
        """Whether the run is to be suspended."""
        return self.spec.get("suspend") is True

    @property
    def generation(self) -> int:
        """Generation of the run's spec."""
        return int(self.metadata.get("generation") or 0)

    @property
    def deleted(self) -> datetime | None:
        """When somebody deleted the run."""
        return parse_time(self.metadata.get("deletionTimestamp"))

    def ray(self, attempt: int) -> Ray | None:
        """RayJob or RayCluster of an attempt."""
        return next((ray for ray in self.rays if ray.attempt == attempt), None)

    def pods_of(self, attempt: int) -> tuple[Pod, ...]:
        """Pods of an attempt that are there."""
        return tuple(pod for pod in self.pods if pod.attempt == attempt and not pod.gone)

    def head(self, attempt: int) -> Pod | None:
        """Head pod of an attempt, if it is there and not on its way out."""
        pods = [pod for pod in self.pods_of(attempt) if pod.role == HEAD and pod.deleting is None]
        return max(pods, key=lambda pod: (pod.ready, pod.name), default=None)


@dataclass(frozen=True)
class Target:
    """An object to delete, and which one: a later one of the same name is left alone."""

    kind: str
    name: str
    uid: str = ""


@dataclass(frozen=True)
class Note:
    """An event about the run."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Pull:
    """Where the driver of an attempt answers."""

    attempt: int
    service: str
    port: int


@dataclass(frozen=True)
class Decision:
    """What to do now. Done in the order of the fields, the status after the notes."""

    status: RunStatus
    """Status as it should be; written only when it is not so already."""
    create: tuple[Manifest, ...] = ()
    """Objects that are missing."""
    apply: tuple[Manifest, ...] = ()
    """Objects that are there and differ."""
    delete: tuple[Target, ...] = ()
    scale: Scale | None = None
    """Another number of samplers to ask KubeRay for."""
    finalizer: bool | None = None
    """True: add ours to the run; False: take it away; None: as it should be."""
    notes: tuple[Note, ...] = ()
    pull: Pull | None = None
    """Driver to ask for its progress now and then; None: none."""
    ask: float | None = None
    """Seconds that the driver may take for a checkpoint to ask for now; None: ask for none."""
    requeue: float = 60.0
    """Seconds until the next look, when nothing happens before."""
