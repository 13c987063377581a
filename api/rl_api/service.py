"""RLPolicyService: a policy behind OpenAI's interface, and how better ones take its place. An ML engineer writes it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from rl_api.allow import SelectorSpec
from rl_api.base import (
    MOST,
    MOST_ITEMS,
    Address,
    Allowed,
    ConfigKey,
    Duration,
    GraceDuration,
    Image,
    Model,
    ObjectName,
    PositiveDuration,
    RunName,
    Word,
)
from rl_api.roles import ResourcesSpec
from rl_api.run import Metadata
from rl_api.service_status import ServiceStatus


class PolicySourceSpec(Model):
    """Where policies come from: exactly one of the fields."""

    run: RunName | None = None
    """RLTrainingRun of the same namespace, whose checkpoints are candidates as they are written."""
    checkpoint: Address | None = None
    """One policy that stays: a Hugging Face hub id, s3://bucket/folder, or a folder of the image."""


class ReplicasSpec(Model):
    """Copies of the policy."""

    min: int = Field(default=1, ge=1, le=1024)
    """Copies that are always there, each in a pod of its own."""
    max: int | None = Field(default=None, ge=1, le=1024)
    """Copies at most: the more requests wait, the more there are; null: as many as min."""


class PrefillSpec(Model):
    """Copies of the policy that compute the keys and values of long prompts, for those that write the answers. They are
    divided like these."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Such copies, each in a pod of its own. Another number takes a second Ray cluster."""
    pools: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Pools of the profile, the most wanted first; empty: those of the other copies."""
    resources: ResourcesSpec | None = None
    """What one pod asks for; null: as the other copies."""
    min_prompt_tokens: int = Field(default=256, ge=1, le=16_777_216)
    """Tokens of a prompt from which on one of them computes it."""


class ServiceLimitsSpec(Model):
    """What one request, one client and all of them may ask for."""

    context: int = Field(default=4096, ge=2, le=16_777_216)
    """Tokens of a prompt with its answer."""
    new_tokens: int = Field(default=1024, ge=1, le=16_777_216)
    """Tokens of an answer."""
    queue: int = Field(default=64, ge=0, le=100_000)
    """Answers that may wait at each copy; beyond it a request is refused with status 429."""
    timeout: PositiveDuration = Duration(300)
    """Longest time to an answer's end."""
    requests_per_second: float | None = Field(default=None, gt=0.0, le=MOST)
    """Requests of all clients together; null: no limit."""
    requests_per_second_per_key: float | None = Field(default=None, gt=0.0, le=MOST)
    """Requests with one API key; null: no limit."""


class HeadSpec(Model):
    """The pod that reads policies, measures candidates on its CPU, and gives policies to the copies."""

    pools: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Pools of the profile, the most wanted first; empty: one without accelerators, if there is one."""
    resources: ResourcesSpec | None = None
    """What it asks for: room for two copies of the policy; null: the profile's."""


class AuthSpec(Model):
    """Who may ask: exactly one of the fields."""

    secret: ObjectName | None = None
    """Secret of the namespace whose values are API keys, one on each line, of at least 16 ASCII characters each."""
    anonymous: bool = False
    """true: everyone who reaches the service may ask."""


class HeldOutGateSpec(Model):
    """The run's held-out prompts, answered greedily by candidate and serving policy."""

    samples: int = Field(default=128, ge=1, le=100_000)
    """Prompts at most."""
    confidence: float = Field(default=0.95, ge=0.5, le=0.9999)
    """Level of the interval of the difference in score."""
    max_drop: float = Field(default=0.0, ge=0.0, le=1.0)
    """The candidate is refused where its score is lower than the serving policy's by more than this, so confidently."""


class ProbeGateSpec(Model):
    """Prompts that training never saw, scored by something that is not the reward."""

    config_map: ObjectName
    """ConfigMap of the namespace with the prompts: JSON lines with `prompt` or `messages`, and `answer`."""
    key: ConfigKey = "probe.jsonl"
    """Its key."""
    scorer: Literal["exact", "contains", "number"] = "exact"
    """What is right: the answer itself, an answer that contains it, or one whose last number it is."""
    max_drop: float = Field(default=0.05, ge=0.0, le=1.0)
    """Most by which the candidate's score may be lower than the serving policy's."""
    min_score: float | None = Field(default=None, ge=0.0, le=1.0)
    """Least score of a candidate; null: none."""


class LatencyGateSpec(Model):
    """Time per token."""

    max_ratio: float = Field(default=1.5, ge=1.0, le=1000.0)
    """Most that the candidate may take, as a multiple of the serving policy's."""


class AgreementGateSpec(Model):
    """Log-probabilities of the engine against those of the checkpoint, computed without it."""

    max_difference: float = Field(default=0.05, gt=0.0, le=100.0)
    """Largest mean absolute difference, in nats."""


class GateSpec(Model):
    """What a candidate is measured by before it gets any traffic. A part that is not there is not looked at."""

    held_out: HeldOutGateSpec | None = None
    """The run's held-out prompts; only with from.run."""
    probe: ProbeGateSpec | None = None
    """A second set of prompts, against policies that have learnt to please the reward alone."""
    latency: LatencyGateSpec | None = None
    """Time per token."""
    agreement: AgreementGateSpec | None = None
    """Whether the engine computes what the checkpoint says."""


USUAL_GATE: Final = GateSpec(
    held_out=HeldOutGateSpec(), latency=LatencyGateSpec(), agreement=AgreementGateSpec()
)
"""What a candidate must show where nobody says it."""


class RollbackSpec(Model):
    """When a promoted policy gives its place back to the one before."""

    window: GraceDuration = Duration(120)
    """How long it is compared with the one before; 0: not at all."""
    max_error_ratio: float = Field(default=0.02, ge=0.0, le=1.0)
    """Share of its requests that may fail (status 5xx), beyond that of the one before."""
    max_latency_ratio: float = Field(default=3.0, ge=1.0, le=1000.0)
    """Most that its time per token (95th percentile) may be, as a multiple of that of the one before."""
    min_requests: int = Field(default=20, ge=1, le=MOST)
    """Requests from which on its errors and times count."""
    probe: bool = True
    """Whether it answers the gate's probe again once it has the traffic, within the gate's bounds."""


class IncrementalSpec(Model):
    """How the traffic moves to a second Ray cluster in steps, by a Gateway's routes. KubeRay needs its feature gate
    RayServiceIncrementalUpgrade for it."""

    gateway_class: ObjectName
    """GatewayClass of the cluster (Gateway API) whose Gateways bring requests to services."""
    step_percent: int = Field(default=20, ge=1, le=100)
    """Share of the requests that moves at once, in percent."""
    interval: PositiveDuration = Duration(30)
    """Time between two steps, rounded up to whole seconds."""
    halted: bool = False
    """true: the requests stay shared as they are, until it is false again."""


class PromotionSpec(Model):
    """How candidates take the place of the policy that serves."""

    mode: Literal["automatic", "manual"] = "automatic"
    """automatic: each new checkpoint is a candidate; manual: `step` names the one that is wanted."""
    step: int | None = Field(default=None, ge=0, le=MOST)
    """Checkpoint that is wanted, with mode manual; it passes the gate as well. null: the newest, once."""
    strategy: Literal["inPlace", "newCluster", "incremental"] = "inPlace"
    """inPlace: copies load the new weights beside the old ones; newCluster: a second Ray cluster comes up, and has the
    traffic once it is healthy; incremental: the traffic moves to it in steps. Another image, or other pods, take a second
    cluster in all of them."""
    incremental: IncrementalSpec | None = None
    """How the traffic moves with strategy incremental, and only there."""
    answers: Literal["finish", "stamp"] = "finish"
    """What becomes of answers that are under way where weights change in place: finish: they end with the policy they began
    with; stamp: they go on with the new one, and say where it changed. With engine vllm and strategy inPlace: stamp."""
    gate: GateSpec = USUAL_GATE
    """What a candidate must show: where nothing is said, all of it but a probe, which needs prompts; with `gate: {}`
    nothing."""
    rollback: RollbackSpec = RollbackSpec()
    """When it is taken back."""


class ServiceSpec(Model):
    """What to serve and with what."""

    profile: ObjectName | None = None
    """RLTrainingProfile of the platform; null: the one marked default."""
    image: Image | None = None
    """Container image of the trainer; null: the profile's."""
    source: Annotated[PolicySourceSpec, Allowed("an object with run or checkpoint")] = Field(alias="from")
    """Where policies come from; it stays as the service was made with it."""
    model: Word | None = None
    """Name of the model for clients; null: the service's."""
    engine: Literal["torch", "vllm"] = "torch"
    """Inference engine: torch (plain PyTorch, also without GPU) or vllm, which the -gpu image has."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Accelerators that each layer of one copy is divided over; above 1 only with engine vllm."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=64)
    """Stages that the layers of one copy are divided into, of tensorParallelSize accelerators each; above 1 only with engine
    vllm. All of them are in the copy's pod."""
    replicas: ReplicasSpec = ReplicasSpec()
    """Copies of the policy."""
    prefill: PrefillSpec | None = None
    """Copies that compute prompts alone, with engine vllm; null: who writes an answer computes its prompt."""
    pools: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Pools of the profile for the copies, the most wanted first; empty: the profile's first alone."""
    resources: ResourcesSpec | None = None
    """What one copy's pod asks for; null: the profile's, and tensorParallelSize times pipelineParallelSize accelerators in a
    pool that has some."""
    head: HeadSpec = HeadSpec()
    """The pod that measures candidates."""
    secrets: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Secrets of the namespace, whose keys become environment variables of the head, which reads policies: HF_TOKEN,
    AWS_ACCESS_KEY_ID."""
    limits: ServiceLimitsSpec = ServiceLimitsSpec()
    """What may be asked for."""
    auth: Annotated[AuthSpec, Allowed("an object with secret, or with anonymous: true")]
    """Who may ask."""
    clients: SelectorSpec | None = None
    """Namespaces whose pods reach the service; null: its own alone."""
    promotion: PromotionSpec = PromotionSpec()
    """How better policies take its place."""

    @property
    def devices(self) -> int:
        """Devices of one copy."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class RLPolicyService(Model):
    """A policy behind OpenAI's interface on a cluster."""

    api_version: Literal["rltrain.dev/v1alpha1"] = "rltrain.dev/v1alpha1"
    """Version of the contract."""
    kind: Literal["RLPolicyService"] = "RLPolicyService"
    """Kind of the object."""
    metadata: Metadata
    """Name and labels."""
    spec: ServiceSpec
    """What to serve and with what."""
    status: ServiceStatus | None = None
    """How it goes; written by the operator, not by people."""

    @property
    def name(self) -> str:
        """The service's name."""
        return self.metadata.name
