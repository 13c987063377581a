"""Who does the work and how it flows: samplers, learners, buffer, placement and weight synchronisation."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from rl_api.base import (
    MOST,
    MOST_ITEMS,
    Allowed,
    Duration,
    Model,
    ObjectName,
    PositiveDuration,
    Quantity,
    Text,
    Word,
)
from rl_api.placement import TopologySpec

LEAVE_VARIABLE: Final = "RLTRAIN_LEAVE_SOCKET"
"""Environment variable of a sampler's pod: the socket at which the sampler hears that the pod is told to go."""

RESERVED_VARIABLES: Final = ("RLTRAIN_*", "RAY_*", "FQ_RAY_IP", "KUBERAY_*", "*_VISIBLE_DEVICES")
"""Environment variables that are rltrain's, Ray's or the device plugin's, with `*` for any text: no Secret changes them, and
none is anybody else's key."""


class ResourcesSpec(Model):
    """What one replica of a role asks for."""

    cpu: float | None = Field(default=None, gt=0.001, le=1024.0)
    """CPU cores; null: as many as the role's threads."""
    accelerators: int | None = Field(default=None, ge=0, le=1024)
    """Accelerators (GPUs) of one pod; null: on an accelerator pool tensorParallelSize times pipelineParallelSize, over
    podsPerReplica where a sampler has several pods, else 0."""
    memory: Quantity | None = None
    """Memory of the pod; null: the profile's."""
    ephemeral_storage: Quantity | None = None
    """Most that the pod keeps on its node's disk; null: the pool's."""


_HOST: Final = r"([A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|\[[0-9A-Fa-f:]{2,39}\])"
_PORT: Final = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"

ServerAddress = Annotated[
    str,
    Field(pattern=rf"^https?://{_HOST}(:{_PORT})?(/[A-Za-z0-9._~/-]*)?$", max_length=253),
    Allowed("an address such as http://inference:8000, its port 1 to 65535, at most 253 characters"),
]
"""Where a server is asked over HTTP, without a query."""

SharedPath = Annotated[
    str,
    Field(pattern=r"^/[^\x00-\x1f\x7f-\x9f]+$", max_length=896),
    Allowed("an absolute path of at most 896 characters on one line"),
]
"""A folder that two machines see."""

VariableName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253),
    Allowed("a name of letters, digits and '_', the first no digit"),
]
"""Name of an environment variable."""


class EndpointSpec(Model):
    """A vLLM server outside the run, which samples in place of an engine of the sampler's own."""

    url: ServerAddress
    """Where it is asked, without the /v1 at its end that clients of OpenAI's interface want."""
    folder: SharedPath
    """A folder of this run's own into which the sampler writes each version of the weights, and from which the server
    reads them. On a cluster persistentVolumeClaim is mounted there."""
    server_folder: SharedPath | None = None
    """The same folder as the server sees it; null: under the same path. On a cluster: where the server has mounted the
    claim, in which each run has a folder of its own."""
    persistent_volume_claim: ObjectName | None = None
    """PersistentVolumeClaim of the run's namespace that the server has mounted as well, all of it, so that it finds the
    weights: one that several nodes can mount (ReadWriteMany) unless both are on one node. Required on a cluster, not used
    locally."""
    secret: ObjectName | None = None
    """Secret of the run's namespace whose keys become environment variables of the sampler, such as the one that
    apiKeyVariable names; null: none. On one machine it is not looked at: set the variable there."""
    api_key_variable: VariableName | None = None
    """Environment variable of the sampler that holds the server's API key, none of rltrain's and Ray's own (RAY_*,
    RLTRAIN_*, KUBERAY_*, *_VISIBLE_DEVICES); null: it wants none."""
    timeout: PositiveDuration = Duration(600)
    """Deadline of each thing that is asked: to be there, to end a sequence, to load weights."""


class SamplerSpec(Model):
    """The role that generates completions."""

    replicas: int = Field(default=1, ge=1, le=4096)
    """Number of samplers; may change while training runs."""
    min_replicas: int = Field(default=1, ge=1, le=4096)
    """Samplers that must be there for training to start and to go on; on a cluster the others join while training
    runs."""
    pools: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Pools of the profile, the most wanted first; empty: the profile's first alone."""
    topology: TopologySpec | None = None
    """How samplers lie to each other on a cluster; null: anyhow."""
    engine: Literal["torch", "vllm", "endpoint"] = "torch"
    """Inference engine: torch (plain PyTorch, also without GPU), vllm, or endpoint (a vLLM server outside the run)."""
    endpoint: EndpointSpec | None = None
    """The server of engine endpoint; null with other engines."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=1024)
    """Accelerators that each layer of a sampler's model copy is divided over; in a run of rltrain's trainer above 1 only
    with engine vllm."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=1024)
    """Stages that the layers of a sampler's model copy are divided into, of tensorParallelSize accelerators each; above 1
    only with engine vllm."""
    pods_per_replica: int = Field(default=1, ge=1, le=1024)
    """Pods of one sampler, each with as many of its stages; above 1 only with engine vllm, and then all samplers begin,
    their number stays while an attempt runs, and none is moved off a drained node beforehand. What stages tell each other is
    not encrypted: on a cluster 1 with scheduling.encryption."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0.0, le=1.0)
    """Share of each accelerator's memory that engine vllm takes, for weights and the cache of keys and values; null: 0.9."""
    max_model_len: int | None = Field(default=None, ge=2, le=MOST)
    """Longest sequence in tokens, prompt and completion, with engine vllm; null: the model's context, or as much of it as
    fits into memory."""
    quantization: Literal["none", "fp8"] = "none"
    """Weights that engine vllm samples with: none (as the learner's, in model.dtype) or fp8 (quantised anew whenever weights
    arrive; on GPUs only)."""
    max_sequences: int = Field(default=64, ge=1, le=65_536)
    """Sequences decoded at once by one sampler."""
    max_new_tokens: int = Field(default=256, ge=1, le=16_777_216)
    """Longest completion in tokens."""
    temperature: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Sampling temperature of training completions."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus: smallest token set with this probability; 1: all."""
    top_k: int = Field(default=0, ge=0, le=MOST)
    """Sample among this many most probable tokens; 0: all."""
    stop: tuple[Text, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Texts that end a completion, besides the model's own end token."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads per sampler."""
    resources: ResourcesSpec | None = None
    """Resources of one pod of a sampler; null: by engine and pool."""

    @property
    def devices(self) -> int:
        """Devices of one sampler: accelerators, or where it has none, processes on CPUs. None where a server has them."""
        return 0 if self.engine == "endpoint" else self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def devices_per_pod(self) -> int:
        """Those of them that are in one pod; its stages are whole (`rl_api.sampler_rules`)."""
        return self.devices // self.pods_per_replica

    @property
    def cores(self) -> int:
        """CPU cores of a sampler's pod without accelerators: its threads, and at least one for each process."""
        return max(self.threads, self.devices_per_pod)


class LoraSpec(Model):
    """Low-rank adaptation: the model's own weights stay, of each of its matrices a change of low rank is learned."""

    rank: int = Field(default=16, ge=1, le=512)
    """Rank of the change: numbers learned per row and column."""
    alpha: int = Field(default=32, ge=1, le=65_536)
    """The change is multiplied by alpha / rank, as in the peft library."""
    target_modules: tuple[Word, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        max_length=MOST_ITEMS,
        strict=False,
    )
    """The linear modules that are adapted, by the last part of their names."""


class LearnerSpec(Model):
    """The role that computes gradients and owns the weights."""

    replicas: int = Field(default=1, ge=1, le=4096)
    """Learner pods, which share every batch; each runs a process per accelerator, at least one."""
    pools: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Pools of the profile, the most wanted first; empty: the profile's first alone."""
    topology: TopologySpec | None = None
    """How learners lie to each other on a cluster; null: anyhow."""
    parallelism: Literal["ddp", "fsdp2"] = "ddp"
    """What each learner process holds: ddp (the whole model) or fsdp2 (its share of every layer's parameters, gradients and
    optimizer state)."""
    fsdp_size: int | None = Field(default=None, ge=1, le=4096)
    """Learner processes that share one copy of the model, with parallelism fsdp2; null: all."""
    context_size: int = Field(default=1, ge=1, le=4096)
    """Learner processes that share each sequence (context parallelism): each computes a part of its tokens, and in attention
    a part of the heads."""
    resources: ResourcesSpec | None = None
    """Resources of one learner pod; null: as many CPU cores as threads, an accelerator on an accelerator pool."""
    tokens_per_micro_batch: int = Field(default=16_384, ge=1, le=MOST)
    """Tokens of one forward and backward pass in each process; a sequence that is longer than contextSize times that is a
    pass of its own."""
    activation_checkpointing: bool = False
    """Compute the activations of each layer again in the backward pass instead of keeping them: less memory, about a
    third more time, the same gradients."""
    optimizer_offload: bool = False
    """Keep the optimizer's moments in the pod's main memory; each step moves them to the accelerator and back, a few at a
    time: 8 bytes per parameter less there, the same numbers, a slower step. Without accelerators it changes nothing."""
    lora: LoraSpec | None = None
    """Learn low-rank adapters instead of all weights: less memory for gradients and optimizer. Samplers and
    checkpoints get the merged weights; checkpoints hold the adapters too. null: learn all weights."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads per learner process."""

    @property
    def ranks_per_replica(self) -> int:
        """Learner processes in one pod: one per accelerator, at least one."""
        return max(1, (self.resources.accelerators or 0) if self.resources is not None else 0)

    @property
    def ranks(self) -> int:
        """Learner processes, among which every batch is divided."""
        return self.replicas * self.ranks_per_replica

    @property
    def data_ranks(self) -> int:
        """Parts of every batch: processes that share sequences have one together."""
        return self.ranks // self.context_size


class BufferSpec(Model):
    """The queue of scored groups between samplers and learners."""

    capacity: int = Field(default=256, ge=1, le=1_000_000)
    """Most groups held; >= algorithm.promptsPerStep."""
    max_staleness: int = Field(default=0, ge=0, le=1_000_000)
    """Weight versions the oldest token of a group may be behind the learner's; 0: on-policy."""
    order: Literal["fifo", "priority"] = "fifo"
    """Which of the ready groups are trained on first: fifo (those ready first) or priority (highest `priority` of the
    prompt's item, 0 without one)."""
    on_full: Literal["block", "dropOldest", "reject"] = "block"
    """When full: block (samplers wait), dropOldest or reject (the new one); both count. With maxStaleness 0 always block."""


class ReplanSpec(Model):
    """When what a run measures of itself changes its placement."""

    threshold: float = Field(default=0.15, gt=0, le=10)
    """Share of a step's time that the other placement must save."""
    steps: int = Field(default=20, ge=1, le=MOST)
    """For how many steps in a row."""


class PlacementSpec(Model):
    """Where the roles' actors run."""

    mode: Literal["auto", "collocated", "disaggregated", "hybrid"] = "auto"
    """collocated: samplers and learners share devices; disaggregated: each has its own; hybrid: some share; auto: as
    sharedSamplers says, each its own where that is null, until a prior or what was measured speaks for another placement:
    with replan, or from the start with rltrain run --profile."""
    shared_samplers: int | None = Field(default=None, ge=0, le=100_000)
    """Samplers that live on learners' devices and take turns with them: the first ones, one beside each of the first learner
    processes, with engine torch or vllm and one device each. null: none with disaggregated and auto, all with collocated,
    half of them with hybrid (rounded up, and no more than learner processes). While an attempt runs the number of samplers
    stays where some share, and all of them begin."""
    part_groups: int | None = Field(default=None, ge=1, le=100_000)
    """Groups that learners begin with while others of the step are still sampled; null: the whole step, and with auto
    what replan or rltrain run --profile plans. Where the algorithm needs the whole batch a part is the whole step."""
    hand_over: Literal["interrupt", "drain"] = "interrupt"
    """How samplers leave learners' devices: interrupt (between two tokens; unfinished answers go on later, or with samplers
    that have devices of their own) or drain (when all they have begun is finished, or waits for a tool or a score)."""
    hand_over_at: float | None = Field(default=None, gt=0, le=1)
    """Share of the step's groups that are finished when shared samplers hand over what they have begun to the others; null:
    when learners want the devices, and with auto what replan or rltrain run --profile plans."""
    residency: Literal["auto", "swap", "keep"] = "auto"
    """What becomes of a role's tensors while the other has the devices: swap (moved out, and in again), keep (they stay), or
    auto: on accelerators swap where both do not fit, as each attempt finds them, on CPUs keep."""
    replan: ReplanSpec | None = None
    """When the run changes its placement by itself, with mode auto, from what it measures: at a checkpoint, from which it
    goes on; on a cluster as the next attempt, with as many samplers and learners as before. Until then it has what a prior
    says would save as much, where sharedSamplers, partGroups and handOverAt are null. null: it keeps its own."""
    strategy: Literal["PACK", "SPREAD"] = "PACK"
    """Ray placement strategy: PACK (few nodes) or SPREAD (many nodes)."""
    timeout: PositiveDuration = Duration(60)
    """Deadline for reserving all actors together, all or nothing. Simulators and reward models that are lost have as long to
    come back, and ten minutes at least."""


WeightTransport = Literal["objectStore", "collective", "delta", "adapter", "ipc"]
"""How a version of the weights travels."""

Transport = Literal["auto", WeightTransport]
"""What a run says of it."""


class WeightSyncSpec(Model):
    """How new weights get from the learners to the samplers."""

    transport: Transport = "auto"
    """How weights travel: objectStore (Ray's object store), collective (a broadcast to all samplers by NCCL or gloo), delta
    (the bytes that changed), adapter (LoRA's tensors alone, with learner.lora), ipc (samplers that share learners' devices
    copy them out of the learner's memory there, without a trip through the host), or auto: collective where samplers with
    accelerators are on several nodes and the model is large, else objectStore. A broadcast is not encrypted: on a cluster
    collective is refused with scheduling.encryption. ipc is refused where no sampler shares (placement.mode,
    placement.sharedSamplers)."""
    every_steps: int = Field(default=1, ge=1, le=MOST)
    """Training steps between two publications; each gives the next weight version."""
    swap: Literal["betweenSteps", "betweenGroups"] = "betweenSteps"
    """When a sampler takes new weights: between two decode steps, or between groups."""
    timeout: PositiveDuration = Duration(60)
    """Deadline of each phase of a publication."""
    max_mismatch: float | None = Field(default=1.5, gt=1.0, lt=10.0)
    """Most that samplers and learner may differ about the same tokens under the same weights: the mean of exp|difference of
    log-probabilities|, of one token at most 10; 1 where they agree. Looked at in the first step, and in each whose tokens
    are all of the learner's version; past it the run ends. null: not looked at."""
