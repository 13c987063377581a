"""What every role of a run will need: its spec, its model's shape and its devices put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rl_api.errors import InvalidConfig
from rl_api.run import RunSpec
from rl_api.sizes.fit import DEVICES_PER_POD, learner_misfit, sampler_misfit
from rl_api.sizes.layout import Group, Node, nodes_of
from rl_api.sizes.learner import (
    LearnerLayout,
    checkpoint_bytes,
    learner_parts,
    main_memory_bytes,
    uneven_heads,
)
from rl_api.sizes.memory import Device, Parts, gigabytes
from rl_api.sizes.sampler import UTILIZATION, SamplerLayout, SamplerMemory, sampler_memory, weight_bytes
from rl_api.sizes.scoring import ScoringLayout, scoring_misfit, scoring_parts
from rl_api.sizes.shape import ModelShape
from rl_api.sizes.shared import SharedDevice, shared_device
from rl_api.task import WorkersSpec

PROMPT_TOKENS = 1024
"""Tokens of a prompt that are reckoned with where sampler.maxModelLen does not say how long sequences are."""


@dataclass(frozen=True)
class Place:
    """Where a role's pods are.

    Attributes:
        accelerators: of each pod, 0: it computes on CPUs.
        device: None: its size is not known, and nothing is held against it.
        per_node: devices of a node, None: not known.
        per_pod: devices that a pod can have at most, None: nobody says.
        main_memory: bytes of each pod with accelerators, None: not known.
        sees_folder: its ranks write checkpoints into the run folder themselves, and on GPUs copy them first; on a cluster
            they upload them, write to a claim that several nodes can mount, or send them to the head piece by piece, and
            copy them where the run asks for that alone (always): their pods' memory is limited.
    """

    pods: int
    accelerators: int
    device: Device | None
    pool: str = "this machine"
    per_node: int | None = None
    per_pod: int | None = None
    main_memory: int | None = None
    sees_folder: bool = True

    @property
    def accelerated(self) -> bool:
        """Whether it is known to compute on accelerators."""
        return self.accelerators > 0 and self.device is not None and self.device.accelerator


@dataclass(frozen=True)
class Scoring:
    """Where the models of `task.rewardModel` are, and their shape; None: it is not known."""

    place: Place
    shape: ModelShape | None


@dataclass(frozen=True)
class RolePlan:
    """One role: bytes of one of its devices (the fullest), and what is wrong with that, as a sentence; None: it fits.

    `parts`: of a reward model whose shape is not known none. `cache`: of a sampler, its room for keys and values.
    `main_memory`: bytes of each pod's, for moments that no device keeps and a checkpoint's copy."""

    name: str
    place: Place
    devices: int
    parts: Parts
    misfit: str | None
    cache: SamplerMemory | None = None
    main_memory: int = 0


@dataclass(frozen=True)
class RunPlan:
    """What a run needs before anything starts. `roles`: without samplers whose model a server outside the run has.
    `shared`: the devices that samplers share with learners; None: none do. `workers`: of the task, by what one is called."""

    shape: ModelShape
    learner_layout: LearnerLayout
    sampler_layout: SamplerLayout
    roles: tuple[RolePlan, ...]
    checkpoint: int
    """Bytes of one."""
    checkpoints: int
    """How many are kept."""
    nodes: tuple[Node, ...]
    shared: SharedDevice | None = None
    workers: Mapping[str, WorkersSpec] = field(default_factory=dict)

    @property
    def misfits(self) -> list[str]:
        """A sentence for each role that does not fit, and for two that do not together."""
        alone = [role.misfit for role in self.roles if role.misfit is not None]
        together = self.shared.misfit if self.shared is not None else None
        return alone if together is None else [*alone, together]


def plan_run(
    spec: RunSpec, shape: ModelShape, learner: Place, sampler: Place, scoring: Scoring | None = None
) -> RunPlan:
    """What the roles of `spec` need at these places; `sampler`: of those with devices of their own; `scoring`: of its reward
    models, None: they are not planned.

    Raises:
        InvalidConfig: its shards do not divide its ranks, or its sequences not its model's heads.
        ModelError: LoRA names a module that the model does not have.
    """
    learning, sampling = learner_layout(spec, shape, learner), sampler_layout(spec, shape)
    guests = spec.shared_samplers
    if guests and not sampler.pods:  # all share
        sampler = replace(learner, pods=0)
    of_learner, of_sampler = learner.device or Device(0, False), sampler.device or Device(0, False)
    # Processes of one pod without accelerators share its memory: together they hold one copy, however it is divided, or
    # the stages of a pod.
    pods = sampling.pods
    together = (
        sampling if sampler.accelerators else replace(sampling, tensor_parallel=1, pipeline_parallel=pods)
    )
    cache = sampler_memory(shape, together, of_sampler)
    per_pod = sampler.per_pod or max(DEVICES_PER_POD, sampler.accelerators)
    roles = [
        RolePlan(
            "learner",
            learner,
            learning.ranks,
            learner_parts(shape, learning, of_learner),
            _learner_misfit(shape, learning, learner),
            main_memory=_main_memory(shape, learning, learner),
        )
    ]
    groups = [replace(_group("learner", learner, share=learning.shard), guests=guests)]
    shared = None
    if guests:
        beside = sampler_memory(shape, together, of_learner).parts
        shared = shared_device(
            shape,
            spec.placement,
            roles[0].parts,
            beside,
            together,
            learner.device,
            samplers=guests,
            per_pod=learner.accelerators,
            published=_published(spec, shape, sampling),
        )
        shared = replace(shared, misfit=shared.misfit or _main_memory_misfit(roles[0], shared))
    if sampling.engine != "endpoint":
        everywhere = replace(sampler, pods=sampler.pods + guests * pods)
        roles.append(
            RolePlan(
                "sampler",
                everywhere,
                everywhere.pods * sampling.devices // pods,
                cache.parts,
                sampler_misfit(shape, together, of_sampler, per_pod) if sampler.device else None,
                cache,
            )
        )
        own = _group("sampler", sampler, tensor=sampling.tensor_parallel, hosts=pods)
        groups.append(replace(own, first=guests))
    if scoring is not None:
        role = _scoring_role(spec, scoring, sampling.length)
        roles.append(role)
        groups.append(_group(role.name, scoring.place))
    keep = spec.checkpoint.keep if spec.checkpoint is not None else 1
    size = checkpoint_bytes(shape, learning)
    nodes = tuple(nodes_of(groups))
    return RunPlan(shape, learning, sampling, tuple(roles), size, keep, nodes, shared, spec.task.workers)


def _published(spec: RunSpec, shape: ModelShape, layout: SamplerLayout) -> int:
    """Bytes of the versions that a learner keeps on its device with `weightSync.transport: ipc`, the second while the first
    is still read."""
    if spec.weight_sync.transport != "ipc":
        return 0
    return 2 * weight_bytes(shape, replace(layout, quantization="none"))


def _scoring_role(spec: RunSpec, scoring: Scoring, length: int) -> RolePlan:
    model, place, shape = spec.task.reward_model, scoring.place, scoring.shape
    assert model is not None, "there is a place for it"
    devices = place.pods * max(1, place.accelerators)
    if shape is None:
        return RolePlan("reward model", place, devices, Parts(), None)
    layout, device = ScoringLayout.of(model, shape, length), place.device or Device(0, False)
    misfit = scoring_misfit(shape, layout, device) if place.device else None
    return RolePlan("reward model", place, devices, scoring_parts(shape, layout, device), misfit)


def _main_memory_misfit(learner: RolePlan, shared: SharedDevice) -> str | None:
    need, there = learner.main_memory + shared.moved, learner.place.main_memory
    if there is None or need <= there:
        return None
    return (
        f"learner: what is moved off devices that samplers share needs {gigabytes(need)} of the main memory of each pod, "
        f"which has {gigabytes(there)}; set learner.resources.memory: {-(-need // 2**30)}Gi, or more"
    )


def _learner_misfit(shape: ModelShape, layout: LearnerLayout, place: Place) -> str | None:
    found = learner_misfit(shape, layout, place.device) if place.device else None
    need, there = _main_memory(shape, layout, place), place.main_memory
    if found is not None or there is None or need <= there:
        return found
    return (
        f"learner: optimizer moments and libraries need {gigabytes(need)} of the main memory of each pod, which has "
        f"{gigabytes(there)}; set learner.resources.memory: {-(-need // 2**30)}Gi, or more"
    )


def _main_memory(shape: ModelShape, layout: LearnerLayout, place: Place) -> int:
    # On devices that nobody knows the copy is counted as on CPUs, beside the model.
    found = layout if place.accelerated else replace(layout, copied=False)
    return main_memory_bytes(shape, found, place.accelerators)


def refuse_others(spec: RunSpec) -> None:
    """Raises InvalidConfig where rltrain's own trainer does not train: what another one needs is not known."""
    if spec.trainer.kind != "rltrain":
        raise InvalidConfig(
            f"spec.trainer.kind: found {spec.trainer.kind!r}, allowed with rltrain plan: rltrain, whose memory is known"
        )


def _group(role: str, place: Place, share: int = 1, tensor: int = 1, hosts: int = 1) -> Group:
    return Group(role, place.pods, place.accelerators, place.pool, place.per_node, share, tensor, hosts)


def learner_layout(spec: RunSpec, shape: ModelShape, place: Place) -> LearnerLayout:
    """How the learner of a run is spread over its ranks; for errors see `plan_run`."""
    learner, algorithm = spec.learner, spec.algorithm
    ranks = place.pods * max(1, place.accelerators)
    shard = (learner.fsdp_size or ranks) if learner.parallelism == "fsdp2" else 1
    context = learner.context_size
    for field_name, size in (("fsdpSize", shard), ("contextSize", context)):
        if ranks % size:
            sentence = f"found {size}, allowed: a divisor of the {ranks} ranks"
            raise InvalidConfig(f"spec.learner.{field_name}: {sentence}")
    uneven = uneven_heads(context, shape.heads, shape.kv_heads)
    if uneven is not None:
        raise InvalidConfig(uneven)
    longest = -(-spec.sampler.max_new_tokens // context)
    # A warm start makes the base: all of it learns.
    lora = learner.lora if spec.warm_start is None else None
    return LearnerLayout(
        ranks=ranks,
        shard=shard,
        tokens=max(learner.tokens_per_micro_batch, longest),
        longest=longest,
        context=context,
        checkpointing=learner.activation_checkpointing,
        half=spec.model.dtype == "bfloat16",
        trained=None if lora is None else shape.lora_parameters(lora.rank, lora.target_modules),
        reference=bool(algorithm.kl.coefficient),
        critic=algorithm.value_model is not None,
        copied=_asynchronous(spec, place.accelerated and place.sees_folder),
        offload=learner.optimizer_offload,
    )


def _asynchronous(spec: RunSpec, accelerated: bool) -> bool:
    wanted = spec.checkpoint.asynchronous if spec.checkpoint is not None else "never"
    return wanted == "always" or (wanted == "auto" and accelerated)


def sampler_layout(spec: RunSpec, shape: ModelShape) -> SamplerLayout:
    """How each sampler of a run is spread, and how long its sequences are."""
    sampler = spec.sampler
    needed = min(shape.max_positions, sampler.max_new_tokens + PROMPT_TOKENS)
    return SamplerLayout(
        engine=sampler.engine,
        tensor_parallel=sampler.tensor_parallel_size,
        pipeline_parallel=sampler.pipeline_parallel_size,
        half=spec.model.dtype == "bfloat16",
        quantization=sampler.quantization,
        utilization=sampler.gpu_memory_utilization or UTILIZATION,
        length=sampler.max_model_len or needed,
        sequences=sampler.max_sequences,
        pods=sampler.pods_per_replica,
    )
