"""What the operator sees of one run: plain values, no client in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from rl_api.progress import CheckpointStatus, Progress, RunStatus
from rl_operator.model.names import HEAD, SAMPLER, samplers_workload_name
from rl_operator.model.needs import NOBODY, NOTHING_ASKED, Asked, Others
from rl_operator.model.times import parse_time
from rl_operator.model.workload import NO_BOOSTS, Boosts, Flavor, Line, Workload

CORDONED: Final = "is cordoned"
"""Why no more pods are put on a node that stays, as far as anybody says."""


@dataclass(frozen=True)
class WorkerGroup:
    """A worker group of a RayCluster, of samplers or of copies of a policy, as it is wanted there."""

    cluster: str
    uid: str
    owner: str
    """Uid of what controls the RayCluster: a RayJob, the run, or a RayService."""
    index: int
    """Place among the worker groups."""
    replicas: int
    most: int
    name: str = SAMPLER
    hosts: int = 1
    """Pods of each of these replicas, whatever a profile has come to say since."""


_ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class Ray:
    """RayJob or RayCluster of one attempt."""

    kind: Literal["RayJob", "RayCluster"]
    name: str
    uid: str
    attempt: int
    created: datetime | None = None
    ended: datetime | None = None
    """When KubeRay saw the job end."""
    deleting: bool = False
    held: bool = False
    """Kept from running by `suspend` of its own spec: its queue waits for quota, or somebody else set it."""
    labelled: bool = False
    """Whether a queue admits it, by its label."""
    job_status: str = ""
    deployment_status: str = ""
    reason: str = ""
    message: str = ""
    cluster: str = ""
    """Name of the RayCluster."""
    cluster_uid: str = ""
    """Of the RayCluster, which it owns or is; empty: none of that name was seen that it owns."""
    cluster_state: str = ""
    cluster_reason: str = ""
    """Message of the RayCluster's ReplicaFailure condition."""
    head_service: str = ""
    status_port: int | None = None
    """Port of the driver's status server, as the head was made with it; None: it does not say."""
    secret: str = ""
    """Name of the Secret with the token of the driver's status server, as the head was made with it."""
    began: Mapping[str, Any] = field(default_factory=dict)
    """What its attempt began with, by fields of `Attempt`, as far as it says."""
    profile: str = ""
    """Profile under which its attempt has begun; empty: it does not say."""
    pod_group: str = ""
    """Kind of the PodGroup that its attempt was made with; empty: none."""
    asked: Asked = NOTHING_ASKED
    """What its pods take."""
    groups: frozenset[str] | None = None
    """Names of its worker groups; None: it says of none."""
    samplers: WorkerGroup | None = None
    """Samplers that KubeRay was asked for; None: not known yet."""

    @property
    def submitted(self) -> bool:
        """Whether the job was submitted, so that a head must have been there."""
        return self.deployment_status == "Running"

    @property
    def needs_token(self) -> bool:
        """Whether KubeRay needs the token of its cluster to let go of it: it stops a job that has not ended."""
        return self.kind == "RayJob" and bool(self.cluster_uid) and self.job_status not in _ENDED

    @property
    def answers(self) -> bool:
        """Whether a driver or a dashboard may answer."""
        return self.submitted or self.cluster_state == "ready"

    @property
    def at_work(self) -> bool:
        """Whether all pods were there once, so that training, or a person, has begun."""
        return self.submitted if self.kind == "RayJob" else self.cluster_state == "ready"


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
    """0: it belongs to none, and is waited for."""
    owner: str = ""
    """Uid of the RayCluster that controls it; empty: none does."""
    ip: str = ""
    """Its own address; empty where it has none yet, or that of its node."""
    phase: str = ""
    ready: bool = False
    node: str = ""
    created: datetime | None = None
    started: datetime | None = None
    """When its node took it; None: it has none yet."""
    deleting: datetime | None = None
    """When it must be gone: deletion time, grace period included."""
    gone: bool = False
    """No longer there; kept in mind for a while for what its end says."""
    reason: str = ""
    """Such as Evicted, or DeletionByTaintManager for a node that was lost."""
    message: str = ""
    unschedulable: str = ""
    """Message of the scheduler."""
    gates: tuple[str, ...] = ()
    """What keeps the scheduler from looking at it."""
    stays: bool = False
    """Whether it may be put on a node that is cordoned, and so is not moved away from one that stays."""
    memory_limit: str = ""
    containers: tuple[Container, ...] = ()


@dataclass(frozen=True)
class Event:
    """A warning about one of the run's objects."""

    kind: str
    name: str
    reason: str
    message: str
    time: datetime | None = None


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

    id: str
    """Of the wish, as in the run's status."""
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


@dataclass(frozen=True)
class QueuePriority:
    """Who goes first in a queue."""

    value: int = 0
    reference: Mapping[str, str] | None = None
    """The class that says so, as `priorityClassRef` of a Workload."""
    missing: str = ""
    """Why it is not known; empty: it is."""


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim that a run names."""

    exists: bool
    storage_class: str | None = None
    """None: it has none, or is not there."""
    shared: bool = False
    """Whether pods on several nodes can write to it (ReadWriteMany)."""


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
    claims: Mapping[str, Claim] = field(default_factory=dict)
    """Claims that the run names, by name; one that is not here was not looked for."""
    others: Others = NOBODY
    """The other runs of its namespace."""
    key: bytes = field(default=b"", repr=False)
    """The operator's, from which tokens of attempts are derived."""
    unasked: str = ""
    """Why the driver is not asked though it is there; empty: it is."""
    kuberay: bool = True
    """Whether the cluster knows RayJob and RayCluster."""
    dra: bool = True
    """Whether the cluster knows ResourceClaimTemplate, by which pods claim devices."""
    kueue: bool = True
    """Whether the cluster has Kueue, which admits runs to their queues."""
    workloads: tuple[Workload, ...] = ()
    """What Kueue queues of the run."""
    line: Line | None = None
    """Place of the run in its queue; None: it does not wait."""
    preemptor: str = ""
    """For whom the queue took the quota back, as far as this run may know; empty: not known."""
    priority: QueuePriority = QueuePriority()
    """Who goes first in the queue."""
    boosts: Boosts = NO_BOOSTS
    """What is known of boosts, by which queues evict who loses least."""
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    """Those that the run was admitted on, by name, as far as they could be read."""
    pod_group: str | None = None
    """Kind of PodGroup of the profile's gang scheduler that the cluster knows; empty: none; None: not asked for."""
    cordoned: Mapping[str, str] = field(default_factory=dict)
    """Nodes with pods of the run on which no more are put, and why."""
    followed: int = 0
    """How many drivers the operator would follow if every namespace had as many as the run's."""
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
    def wants_suspend(self) -> bool:
        """Whether the user wants the run to be suspended."""
        return self.spec.get("suspend") is True

    @property
    def nulls(self) -> list[str]:
        """Paths of the spec's fields that are null."""
        return list(self.run.get("nulls") or ())

    @property
    def late_nulls(self) -> Sequence[str]:
        """Fields that somebody applied a null for when the run had begun with another value."""
        found: Sequence[str] = self.run.get("lateNulls") or ()
        return found

    @property
    def generation(self) -> int:
        """Generation of the run's spec."""
        return int(self.metadata.get("generation") or 0)

    @property
    def deleted(self) -> datetime | None:
        """When somebody deleted the run."""
        return parse_time(self.metadata.get("deletionTimestamp"))

    @property
    def workload(self) -> Workload | None:
        """What Kueue queues of the run but for samplers above the fewest."""
        there = [one for one in self.workloads if not one.deleting]
        return next((one for one in there if one.name == self.metadata.get("name")), None)

    @property
    def borrowed(self) -> tuple[Workload, ...]:
        """What Kueue queues of its samplers above the fewest."""
        return tuple(
            one
            for one in self.workloads
            if one.slice is not None
            and one.name == samplers_workload_name(str(self.metadata.get("name")), one.slice)
        )

    def ray(self, attempt: int) -> Ray | None:
        """RayJob or RayCluster of an attempt."""
        return next((ray for ray in self.rays if ray.attempt == attempt), None)

    def said(self, attempt: int) -> Reading | None:
        """What the driver of an attempt said last."""
        return self.reading if self.reading is not None and self.reading.attempt == attempt else None

    def pods_of(self, attempt: int) -> tuple[Pod, ...]:
        """Pods of an attempt that are there."""
        return tuple(pod for pod in self.pods if pod.attempt == attempt and not pod.gone)

    def head(self, attempt: int) -> Pod | None:
        """Head pod of an attempt, if it is there and not on its way out."""
        pods = [pod for pod in self.pods_of(attempt) if pod.role == HEAD and pod.deleting is None]
        return max(pods, key=lambda pod: (pod.ready, pod.name), default=None)

    def unsure(self, attempt: int, status: RunStatus) -> bool:
        """Whether what is seen would end an attempt, or its pods, so that it is worth another look: watches may lag."""
        ray = self.ray(attempt)
        newest = status.evictions[-1:]
        if ray is None and newest and newest[0].attempt == attempt and newest[0].resumed_time is None:
            return False  # it is away on purpose
        lost = status.queue is not None and status.queue.workload is not None and self.workload is None
        return ray is None or lost or (ray.submitted and self.head(attempt) is None)
