"""What the operator decides to do for one run: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from rl_api.progress import RunStatus
from rl_operator.model.names import Manifest
from rl_operator.model.seen import WorkerGroup


@dataclass(frozen=True)
class Target:
    """An object to delete, and which one: a later one of the same name is left alone."""

    kind: str
    name: str
    uid: str = ""
    """Empty: that of the run's own object of this name, which is looked up."""


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
    address: str
    """Of the head pod: a name could be anybody's."""
    port: int


@dataclass(frozen=True)
class Scale:
    """The wish for another number of pods in a worker group."""

    group: WorkerGroup
    replicas: int
    remove: tuple[str, ...] = ()
    """Pods to take away: where there are to be fewer, or others in their place."""
    bound: bool = False
    """Whether there are to be no more later on, so that what is not asked for is free for others."""

    @property
    def patch(self) -> list[Manifest]:
        """As a JSON patch, which fails where the cluster or the group is another one by now."""
        root = f"/spec/workerGroupSpecs/{self.group.index}"
        patch: list[Manifest] = [
            {"op": "test", "path": "/metadata/uid", "value": self.group.uid},
            {"op": "test", "path": f"{root}/groupName", "value": self.group.name},
            {"op": "add", "path": f"{root}/replicas", "value": self.replicas},
            # What was named there before is gone, and names are not used again.
            {
                "op": "add",
                "path": f"{root}/scaleStrategy",
                "value": {"workersToDelete": list(self.remove)} if self.remove else {},
            },
        ]
        if self.replicas > self.group.most or self.bound:
            patch.append({"op": "add", "path": f"{root}/maxReplicas", "value": self.replicas})
        return patch

    @property
    def sentence(self) -> str:
        """For people."""
        if self.replicas == self.group.replicas:
            return (
                f"samplers {', '.join(self.remove)} go from nodes that are drained, and others come for them"
            )
        return f"{self.replicas} instead of {self.group.replicas} samplers are wanted in {self.group.cluster}"


@dataclass(frozen=True)
class WorkloadChange:
    """What Kueue is told of a Workload: its pods are ready, or were lost and are awaited anew; it has ended; or its pods are
    gone and its quota is free."""

    name: str
    uid: str
    to: Literal["PodsReady", "PodsLost", "Finished", "Released"]
    reason: str = ""
    message: str = ""
    evicted: datetime | None = None
    """Which eviction it answers: a later one is another."""


@dataclass(frozen=True)
class Boost:
    """A priority boost to be written into a Workload."""

    workload: str
    uid: str
    value: int


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
    boost: Boost | None = None
    """Written before the queue is told anything: what has given its quota back has none."""
    tell_queue: tuple[WorkloadChange, ...] = ()
    finalizer: bool | None = None
    """True: add ours to the run; False: take it away; None: as it should be."""
    notes: tuple[Note, ...] = ()
    pull: Pull | None = None
    """Driver to ask for its progress now and then; None: none."""
    ask: float | None = None
    """Seconds that the driver may take for a checkpoint to ask for now; None: ask for none."""
    unreadable: str = ""
    """Why nothing can be decided: of the status only the conditions are written, and nothing else is done."""
    requeue: float = field(kw_only=True)
    """Seconds until the next look, when nothing happens before."""

    @property
    def begins(self) -> bool:
        """Whether an attempt begins: its RayJob or RayCluster is made."""
        return any(manifest["kind"] in ("RayJob", "RayCluster") for manifest in self.create)

    @property
    def enters(self) -> bool:
        """Whether the run enters its queue: its Workload is made."""
        return any(manifest["kind"] == "Workload" for manifest in self.create)
