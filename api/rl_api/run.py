"""RLTrainingRun: what to train and with what. The object an ML engineer writes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl_api.algorithm import AlgorithmSpec, WarmStartSpec
from rl_api.base import (
    MOST,
    MOST_ITEMS,
    Address,
    Duration,
    GraceDuration,
    Image,
    LabelValue,
    LivenessDuration,
    Model,
    ObjectName,
    PositiveDuration,
    ResourceName,
    RunName,
    Word,
    forget_server_fields,
)
from rl_api.errors import InvalidConfig
from rl_api.progress import RunStatus
from rl_api.roles import BufferSpec, LearnerSpec, PlacementSpec, SamplerSpec, WeightSyncSpec
from rl_api.task import TaskSpec
from rl_api.trainer import TrainerSpec


class TinyModelSpec(Model):
    """Shape of the model preset `tiny`: a small random Qwen2-type model with a character tokenizer."""

    hidden_size: int = Field(default=128, ge=8, le=65_536)
    """Width; a multiple of 2 * heads."""
    layers: int = Field(default=2, ge=1, le=1024)
    """Decoder layers."""
    heads: int = Field(default=4, ge=1, le=1024)
    """Query heads; a multiple of kvHeads."""
    kv_heads: int = Field(default=2, ge=1, le=1024)
    """Key and value heads."""
    intermediate_size: int = Field(default=256, ge=8, le=1_048_576)
    """Width of the feed-forward layer."""
    max_positions: int = Field(default=512, ge=8, le=16_777_216)
    """Longest prompt plus completion in tokens."""


class ModelSpec(Model):
    """The policy to start from."""

    source: Address
    """Preset `tiny`, a local folder, a Hugging Face hub id, or s3://bucket/folder."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of weights in memory."""
    revision: Word | None = None
    """Branch, tag or commit of a hub id; null: its default branch."""
    tiny: TinyModelSpec | None = None
    """Shape of the preset; only with source tiny. null: the defaults."""


class StorageSpec(Model):
    """Where checkpoints are kept: exactly one of the fields."""

    persistent_volume_claim: ObjectName | None = None
    """PersistentVolumeClaim in the run's namespace (on a cluster). Learners mount it too if it is ReadWriteMany."""
    s3: Address | None = None
    """s3://bucket/folder. On a cluster each run has a folder of its own in it."""
    path: Address | None = None
    """A folder that every learner sees; a relative one is in the run folder."""


class CheckpointSpec(Model):
    """When checkpoints are written, where, and how many are kept."""

    every_steps: int = Field(default=20, ge=1, le=MOST)
    """Training steps between two checkpoints."""
    keep: int = Field(default=3, ge=1, le=10_000)
    """Newest checkpoints that are kept."""
    storage: StorageSpec | None = None
    """Where; null: the run folder. Required on a cluster, whose pods lose their disks."""
    asynchronous: Literal["auto", "always", "never"] = "auto"
    """Whether learners train on while they write one, which they copy into the memory of their nodes first. auto: where
    they are on GPUs of one machine; on CPUs the copy would need 12 bytes per parameter beside the 16 that training has,
    and the memory of a cluster's pods is limited. The last one, and
    one that is asked for, is waited for, and so is what learners send that do not see the folder and upload nothing: on a
    cluster with trainer.kind rltrain all of it, also with always, on a claim that one node alone can mount."""


class StopSpec(Model):
    """When the run has succeeded or has had enough time: whatever comes first."""

    max_steps: int = Field(default=100, ge=1, le=MOST)
    """Training steps."""
    target_reward: float | None = Field(default=None, ge=-MOST, le=MOST)
    """Stop at this held-out score when task.evaluation is set, else at this mean reward of the last 10 steps; null:
    never."""
    max_duration: PositiveDuration | None = None
    """Training time over all attempts; null: no limit."""


class SchedulingSpec(Model):
    """Place in a shared cluster."""

    queue: ObjectName | None = None
    """Queue to be admitted by; null: the profile's."""
    integration: Literal["workload", "label"] = "workload"
    """How Kueue admits a run with a queue. workload: the run itself is queued, evicted with a checkpoint first, and its
    samplers above minReplicas come and go with the quota; label: its RayJob is queued, by a label, with a fixed size."""
    workload_priority_class: ObjectName | None = None
    """Kueue's WorkloadPriorityClass, which says who goes first in the queue; null: priorityClass, or 0."""
    priority_class: ObjectName | None = None
    """PriorityClass of the run's pods; null: none."""
    preemption_grace_period: GraceDuration = Duration(120)
    """Time to write a checkpoint before a preempted run's pods are stopped."""
    encryption: bool = False
    """TLS between the processes of Ray, with certificates of each pod's own; on a cluster only."""


class RetrySpec(Model):
    """What happens after a failure that a new attempt can mend."""

    limit: int = Field(default=3, ge=0, le=100)
    """Attempts after the first."""
    liveness_timeout: LivenessDuration = Duration(120)
    """Time without a sign of life after which a process that is there all the same counts as dead: stopped, or cut off with
    its node. A sampler or learner that has given none yet has a minute more, from its launch on. A sampler is then
    replaced; of a learner or the buffer it ends the attempt."""


class CleanupSpec(Model):
    """What is removed when the run is over."""

    ttl_after_finished: Duration | None = None
    """Time until the finished run's objects are removed; null: never."""


class ServerSpec(Model):
    """The driver's status server: /status and /metrics."""

    port: int = Field(default=0, ge=0, le=65_535)
    """TCP port; 0: any free one."""


class RunSpec(Model):
    """What to train and with what."""

    profile: ObjectName | None = None
    """RLTrainingProfile of the platform; null: the one marked default. Not used locally."""
    workload: Literal["Job", "Cluster", "Service"] = "Job"
    """Job (trains and ends) or Cluster (interactive). Service is refused: to serve a policy, apply an RLPolicyService."""
    image: Image | None = None
    """Container image of the trainer; null: the profile's."""
    secrets: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Secrets of the run's namespace: their keys become environment variables of the processes in its head, such as
    HF_TOKEN or AWS_ACCESS_KEY_ID, but for RAY_*, RLTRAIN_* and *_VISIBLE_DEVICES; with checkpoint.storage.s3 in its
    learners too, with trainer.kind command or verl in all its pods. On one machine they are not looked at: set the
    variables there."""
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    """Seed of everything random: model, prompts, sampling."""
    trainer: TrainerSpec = TrainerSpec()
    """Who trains."""
    given_model: ModelSpec | None = Field(default=None, alias="model")
    """The policy to start from; required but for trainer.kind command."""
    given_task: TaskSpec | None = Field(default=None, alias="task")
    """What to train on; required but for trainer.kind command."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """How the policy is improved."""
    warm_start: WarmStartSpec | None = None
    """Supervised training before reinforcement learning; null: none."""
    sampler: SamplerSpec = SamplerSpec()
    """The role that generates."""
    learner: LearnerSpec = LearnerSpec()
    """The role that learns."""
    buffer: BufferSpec = BufferSpec()
    """The queue between the two."""
    placement: PlacementSpec = PlacementSpec()
    """Where actors run."""
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    """How samplers get new weights."""
    checkpoint: CheckpointSpec | None = CheckpointSpec()
    """Checkpoints; null: one at the end or when interrupted."""
    stop: StopSpec = StopSpec()
    """When the run ends."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """Place in a shared cluster."""
    retry: RetrySpec = RetrySpec()
    """New attempts after failures."""
    suspend: bool = False
    """true: checkpoint, stop and give the accelerators back."""
    cleanup: CleanupSpec = CleanupSpec()
    """What is removed when the run is over."""
    server: ServerSpec = ServerSpec()
    """The driver's status server."""

    @property
    def model(self) -> ModelSpec:
        """The policy to start from. Raises InvalidConfig where there is none, as a run of kind command may have it."""
        if self.given_model is None:
            raise InvalidConfig(f"spec.model: missing, required with trainer.kind {self.trainer.kind}")
        return self.given_model

    @property
    def task(self) -> TaskSpec:
        """What to train on. Raises InvalidConfig where there is nothing, as in a run of kind command."""
        if self.given_task is None:
            raise InvalidConfig(f"spec.task: missing, required with trainer.kind {self.trainer.kind}")
        return self.given_task

    @property
    def shared_samplers(self) -> int:
        """Samplers on learners' devices, the first of `sampler.replicas`: sampler s beside learner process s. None with mode
        disaggregated, all with collocated; with hybrid and auto what `placement.sharedSamplers` says, or else half of
        them, rounded up and no more than learner processes, with hybrid, and none with auto. Other trainers than
        rltrain's share in ways of their own: none."""
        mode, said, samplers = self.placement.mode, self.placement.shared_samplers, self.sampler.replicas
        if self.trainer.kind != "rltrain" or mode == "disaggregated":
            return 0
        if mode == "collocated":
            return samplers
        if said is not None:
            return said
        return min((samplers + 1) // 2, self.learner.ranks) if mode == "hybrid" else 0


class Metadata(Model):
    """Name and labels of a namespaced object."""

    name: RunName
    """Name, unique in the namespace; also the run folder's default name."""
    namespace: ObjectName | None = None
    """Namespace; null: kubectl's current one."""
    labels: dict[ResourceName, LabelValue] = Field(default_factory=dict)
    """Kubernetes labels."""
    annotations: dict[ResourceName, str] = Field(default_factory=dict)
    """Kubernetes annotations."""

    _forget = model_validator(mode="before")(forget_server_fields)


class RLTrainingRun(Model):
    """One reinforcement-learning run: `rltrain run` trains it here, `kubectl apply` on a cluster."""

    api_version: Literal["rltrain.dev/v1alpha1"] = "rltrain.dev/v1alpha1"
    """Version of the contract."""
    kind: Literal["RLTrainingRun"] = "RLTrainingRun"
    """Kind of the object."""
    metadata: Metadata
    """Name and labels."""
    spec: RunSpec
    """What to train and with what."""
    status: RunStatus | None = None
    """How the run goes; written by the operator, not by people."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.metadata.name
