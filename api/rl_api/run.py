"""RLTrainingRun: what to train and with what. The object an ML engineer writes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl_api.algorithm import (
    AlgorithmSpec,
    WarmStartSpec,
)
from rl_api.base import (
    Address,
    Duration,
    LabelValue,
    Model,
    ObjectName,
    PositiveDuration,
    ResourceName,
    RunName,
    Text,
    forget_server_fields,
)
from rl_api.errors import InvalidConfig
from rl_api.progress import RunStatus
from rl_api.roles import (
    BufferSpec,
    LearnerSpec,
    PlacementSpec,
    SamplerSpec,
    WeightSyncSpec,
)
from rl_api.task import TaskSpec
from rl_api.trainer import TrainerSpec


class TinyModelSpec(Model):
    """Shape of the model preset `tiny`: a small random Qwen2-type model with a character tokenizer."""

    hidden_size: int = Field(default=128, ge=8, description="Width; a multiple of 2 * heads.")
    layers: int = Field(default=2, ge=1, description="Decoder layers.")
    heads: int = Field(default=4, ge=1, description="Query heads; a multiple of kvHeads.")
    kv_heads: int = Field(default=2, ge=1, description="Key and value heads.")
    intermediate_size: int = Field(default=256, ge=8, description="Width of the feed-forward layer.")
    max_positions: int = Field(default=512, ge=8, description="Longest prompt plus completion in tokens.")


class ModelSpec(Model):
    """The policy to start from."""

    source: Address = Field(
        description="Preset `tiny`, a local folder, a Hugging Face hub id, or s3://bucket/folder."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Number format of weights in memory."
    )
    revision: Text | None = Field(
        default=None, description="Branch, tag or commit of a hub id; null: its default branch."
    )
    tiny: TinyModelSpec | None = Field(
        default=None, description="Shape of the preset; only with source tiny. null: the defaults."
    )


class StorageSpec(Model):
    """Where checkpoints are kept: exactly one of the fields."""

    persistent_volume_claim: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim in the run's namespace (on a cluster)."
    )
    s3: Address | None = Field(
        default=None, description="s3://bucket/folder. On a cluster each run has a folder of its own in it."
    )
    path: Address | None = Field(
        default=None, description="A folder that every learner sees; a relative one is in the run folder."
    )


class CheckpointSpec(Model):
    """When checkpoints are written, where, and how many are kept."""

    every_steps: int = Field(default=20, ge=1, description="Training steps between two checkpoints.")
    keep: int = Field(default=3, ge=1, description="Newest checkpoints that are kept.")
    storage: StorageSpec | None = Field(
        default=None,
        description="Where; null: the run folder. Required on a cluster, whose pods lose their disks.",
    )


class StopSpec(Model):
    """When the run has succeeded or has had enough time: whatever comes first."""

    max_steps: int = Field(default=100, ge=1, description="Training steps.")
    target_reward: float | None = Field(
        default=None,
        description="Stop at this held-out score when task.evaluation is set, else at this mean reward "
        "of the last 10 steps; null: never.",
    )
    max_duration: PositiveDuration | None = Field(
        default=None, description="Training time over all attempts; null: no limit."
    )


class SchedulingSpec(Model):
    """Place in a shared cluster."""

    queue: ObjectName | None = Field(
        default=None, description="Queue to be admitted by; null: the profile's."
    )
    priority_class: ObjectName | None = Field(
        default=None, description="PriorityClass of the run's pods; null: none."
    )
    preemption_grace_period: Duration = Field(
        default=Duration(120),
        description="Time to write a checkpoint before a preempted run's pods are stopped.",
    )


class RetrySpec(Model):
    """What happens after a failure that a new attempt can mend."""

    limit: int = Field(default=3, ge=0, description="Attempts after the first.")


class CleanupSpec(Model):
    """What is removed when the run is over."""

    ttl_after_finished: Duration | None = Field(
        default=None, description="Time until the finished run's objects are removed; null: never."
    )


class ServerSpec(Model):
    """The driver's status server: /status and /metrics."""

    port: int = Field(default=0, ge=0, le=65_535, description="TCP port; 0: any free one.")


class RunSpec(Model):
    """What to train and with what."""

    profile: ObjectName | None = Field(
        default=None,
        description="RLTrainingProfile of the platform; null: the one marked default. Not used locally.",
    )
    workload: Literal["Job", "Cluster", "Service"] = Field(
        default="Job",
        description="Job (trains and ends), Cluster (interactive) or Service (serves the policy).",
    )
    image: Text | None = Field(
        default=None, description="Container image of the trainer; null: the profile's."
    )
    secrets: tuple[ObjectName, ...] = Field(
        default=(),
        strict=False,
        description="Secrets of the run's namespace: their keys become environment variables of all its pods, such as "
        "HF_TOKEN or AWS_ACCESS_KEY_ID. On one machine they are not looked at: set the variables there.",
    )
    seed: int = Field(
        default=0, ge=0, le=2**32 - 1, description="Seed of everything random: model, prompts, sampling."
    )
    trainer: TrainerSpec = Field(default_factory=TrainerSpec, description="Who trains.")
    given_model: ModelSpec | None = Field(
        default=None,
        alias="model",
        description="The policy to start from; required but for trainer.kind command.",
    )
    given_task: TaskSpec | None = Field(
        default=None, alias="task", description="What to train on; required but for trainer.kind command."
    )
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec, description="How the policy is improved.")
    warm_start: WarmStartSpec | None = Field(
        default=None, description="Supervised training before reinforcement learning; null: none."
    )
    sampler: SamplerSpec = Field(default_factory=SamplerSpec, description="The role that generates.")
    learner: LearnerSpec = Field(default_factory=LearnerSpec, description="The role that learns.")
    buffer: BufferSpec = Field(default_factory=BufferSpec, description="The queue between the two.")
    placement: PlacementSpec = Field(default_factory=PlacementSpec, description="Where actors run.")
    weight_sync: WeightSyncSpec = Field(
        default_factory=WeightSyncSpec, description="How samplers get new weights."
    )
    checkpoint: CheckpointSpec | None = Field(
        default_factory=CheckpointSpec, description="Checkpoints; null: one at the end or when interrupted."
    )
    stop: StopSpec = Field(default_factory=StopSpec, description="When the run ends.")
    scheduling: SchedulingSpec = Field(
        default_factory=SchedulingSpec, description="Place in a shared cluster."
    )
    retry: RetrySpec = Field(default_factory=RetrySpec, description="New attempts after failures.")
    suspend: bool = Field(default=False, description="true: checkpoint, stop and give the accelerators back.")
    cleanup: CleanupSpec = Field(
        default_factory=CleanupSpec, description="What is removed when the run is over."
    )
    server: ServerSpec = Field(default_factory=ServerSpec, description="The driver's status server.")

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


class Metadata(Model):
    """Name and labels of a namespaced object."""

    name: RunName = Field(description="Name, unique in the namespace; also the run folder's default name.")
    namespace: ObjectName | None = Field(default=None, description="Namespace; null: kubectl's current one.")
    labels: dict[ResourceName, LabelValue] = Field(default_factory=dict, description="Kubernetes labels.")
    annotations: dict[ResourceName, str] = Field(default_factory=dict, description="Kubernetes annotations.")

    _forget = model_validator(mode="before")(forget_server_fields)


class RLTrainingRun(Model):
    """One reinforcement-learning run: `rltrain run` trains it here, `kubectl apply` on a cluster."""

    api_version: Literal["rltrain.dev/v1alpha1"] = Field(
        default="rltrain.dev/v1alpha1", description="Version of the contract."
    )
    kind: Literal["RLTrainingRun"] = Field(default="RLTrainingRun", description="Kind of the object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: RunSpec = Field(description="What to train and with what.")
    status: RunStatus | None = Field(
        default=None, description="How the run goes; written by the operator, not by people."
    )

    @property
    def name(self) -> str:
        """The run's name."""
        return self.metadata.name
