"""What the operator sees of one policy service, and what it decides for it: plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rl_api.service_status import FollowedRun, PolicyVersion, ServiceStatus
from rl_operator.model.decision import Note, Scale
from rl_operator.model.names import HEAD, Manifest
from rl_operator.model.needs import NOBODY, NOTHING, Needs, Others
from rl_operator.model.seen import Event, Live, Pod, WorkerGroup
from rl_operator.model.times import parse_time


@dataclass(frozen=True)
class RayService:
    """A RayService as KubeRay shows it."""

    name: str
    uid: str
    live: Live
    """As it was applied."""
    active: str = ""
    """Name of the RayCluster that has the traffic; empty: none yet."""
    pending: str = ""
    """Name of the one that is to have it; empty: none."""
    ready: bool = False
    """Whether requests can be answered, in KubeRay's words."""
    problem: str = ""
    """What KubeRay or Ray Serve say is wrong."""
    applications: Mapping[str, str] = field(default_factory=dict)
    """State of each Serve application of the cluster with the traffic, such as RUNNING."""
    share: int | None = None
    """Of the requests, in percent, what goes to the pending one; None: nothing is shared out."""
    going_back: bool = False
    """Whether KubeRay takes the traffic back from the pending one."""
    steps: bool = False
    """Whether KubeRay moves traffic in steps, or has not looked yet: it does not where its feature gate is off."""
    profile: str = ""
    """Name of the profile for which its pods count; empty: none is known."""
    asked: Needs = NOTHING
    """What its pods take, in one cluster."""


@dataclass(frozen=True)
class Replica:
    """One copy of the policy, as the service's control says."""

    id: str
    """Empty: it was counted, and not named."""
    version: str = ""
    """Version that it serves; empty: none."""
    loading: str = ""
    """Version that it loads."""
    error: str = ""
    """Why it could not load the last one."""
    retryable: bool = False
    """Whether that says nothing about the policy, such as that a bucket does not answer."""


@dataclass(frozen=True)
class VersionFigures:
    """Answers of one version in the last minutes."""

    requests: int = 0
    errors: int = 0
    token_seconds: float | None = None
    """Time per token, 95th percentile."""
    probe: float | None = None
    """Score of the probe, answered by the copies that serve."""
    deaths: int = 0
    """Copies that ended with it, or loading it, and had not been told to; what they were answering is among the errors."""

    @property
    def error_ratio(self) -> float:
        """Share of requests that failed."""
        return self.errors / self.requests if self.requests else 0.0


def gate_text(gate: object) -> str:
    """A gate as text: the same for the same one."""
    return json.dumps(gate, sort_keys=True)


@dataclass(frozen=True)
class Evaluation:
    """What became of the wish to measure a candidate."""

    state: str
    """running, passed, failed (a verdict) or error (there is none)."""
    message: str = ""
    serving: str = ""
    """Digest of the policy that the candidate is compared with; empty: with none, or it is not said."""
    gate: str = ""
    """What is looked at, as `gate_text` writes it; empty: it is not said."""
    retryable: bool = False
    """With state error, whether it may be known when it is asked for again, half a minute later."""


@dataclass(frozen=True)
class Control:
    """What a service's control said last."""

    time: datetime
    cluster: str
    """RayCluster that it is of."""
    replicas: tuple[Replica, ...] = ()
    versions: Mapping[str, VersionFigures] = field(default_factory=dict)
    checkpoints: tuple[PolicyVersion, ...] = ()
    """Policies that there are, newest first."""
    problem: str = ""
    """Why there are none."""
    key_problem: str = ""
    """Why API keys of the Secret are none."""
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """By digest."""


@dataclass(frozen=True)
class Gateway:
    """A Gateway of the Gateway API, as whoever carries it out shows it."""

    address: str = ""
    """Where clients reach it; empty: nobody says."""
    problem: str = ""
    """Why no request comes through it; empty: it works."""


@dataclass(frozen=True)
class ServiceWorld:
    """Everything that decides what happens next with a service."""

    service: Mapping[str, Any]
    """The RLPolicyService as the API server holds it."""
    ray: RayService | None = None
    pods: tuple[Pod, ...] = ()
    clusters: Mapping[str, str] = field(default_factory=dict)
    """RayCluster of each pod that one of the service's controls, by the pod's name."""
    groups: Mapping[str, WorkerGroup] = field(default_factory=dict)
    """Worker group of the copies in each RayCluster, by its name."""
    events: tuple[Event, ...] = ()
    live: Mapping[tuple[str, str], Live] = field(default_factory=dict)
    """Objects by kind and name."""
    followed: FollowedRun | None = None
    lost: tuple[str, str] | None = None
    """Reason and sentence: why there is no run to follow (any more)."""
    control: Control | None = None
    control_error: str = ""
    coming: Control | None = None
    """What the control of the pending RayCluster said."""
    gateway: Gateway | None = None
    """What brings requests to both clusters, with strategy incremental; None: there is none."""
    key: bytes = field(default=b"", repr=False)
    dra: bool = True
    """Whether the cluster knows ResourceClaimTemplate, by which pods claim devices."""
    kuberay: bool = True
    """Whether the cluster knows RayService."""
    refusal: str = ""
    """What the API server said when an object of the service could not be written."""
    log_tail: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[Needs, ...] = ()
    """What each Ray cluster of the service takes: during an update it has two, and the old one for a while after it."""
    others: Others = NOBODY

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the service."""
        found: Mapping[str, Any] = self.service["metadata"]
        return found

    @property
    def generation(self) -> int:
        """Generation of the service's spec."""
        return int(self.metadata.get("generation") or 0)

    @property
    def deleted(self) -> datetime | None:
        """When somebody deleted the service."""
        return parse_time(self.metadata.get("deletionTimestamp"))

    def pods_of(self, cluster: str) -> tuple[Pod, ...]:
        """Pods of a RayCluster that are there."""
        return tuple(pod for pod in self.pods if not pod.gone and self.clusters.get(pod.name) == cluster)

    def head_of(self, cluster: str) -> Pod | None:
        """The head of a RayCluster where it can be asked."""
        heads = [pod for pod in self.pods_of(cluster) if pod.role == HEAD and pod.deleting is None and pod.ip]
        return max(heads, key=lambda pod: (pod.ready, pod.name), default=None)


@dataclass(frozen=True)
class Wish:
    """What a service's control is asked for."""

    path: str
    """evaluate or probe."""
    body: Mapping[str, Any]
    cluster: str = ""
    """RayCluster whose control is asked."""


@dataclass(frozen=True)
class ServiceDecision:
    """What to do now. Done in the order of the fields, the status after the notes."""

    status: ServiceStatus
    create: tuple[Manifest, ...] = ()
    apply: tuple[Manifest, ...] = ()
    change: tuple[Manifest, ...] = ()
    """JSON patch of the RayService, where its pods have to stay as they are."""
    scale: Scale | None = None
    notes: tuple[Note, ...] = ()
    wish: Wish | None = None
    requeue: float = field(kw_only=True)
