"""A profile of a run of which nothing was measured: by its spec, its model's shape and its devices. Pure.

With P parameters, A of them active for a token, on a device of F operations and B bytes of its own memory in a second, of
which passes get `COMPUTED` and decoding `READ` (F and B are what they get), L bytes to another device, H to main memory:

    decode step    bytes of the weights / B + 2 A / F for each sequence + its keys and values / B for each cached token:
                   all of them are read for each token (Pope et al. 2022, arXiv 2211.05102, section 2.1)
    prefill        2 A / F for each token; learning 6 A / F, of weights that do not learn 4, with activations computed
                   again 2 more (Kaplan et al. 2020, arXiv 2001.08361, section 2.1; Chen et al. 2016, arXiv 1604.06174)
    log-probs      2 A / F for a reference, and 2 where the policy's are computed anew; a critic learns as the policy
                   does, and says its values before
    a part         weights are read twice, gradients read and written: (2 width P + 8 trained) / B; with FSDP weights
                   travel for both passes and gradients back: 3 width P / L (Rajbhandari et al. 2020, ZeRO, arXiv
                   1910.02054, section 7.2.2); and the calls that it takes
    a step         AdamW reads weights, gradients and two moments and writes all but gradients, in float32: 28 bytes / B
                   for each parameter that learns; gradients go round a ring: 2 (n - 1) / n times 4 bytes / L
    publishing     the weights once: width P / L
    change         what is kept of a role, each way / H
    answers        log-normal with sigma 0.7 whose median is 0.3 of `sampler.maxNewTokens`, cut there: on average 0.37 of
                   it, and one of 23 is cut; verl's 7B has 10,426 tokens of 27,648 (`tests/support/published_steps.py`)
    prompts        256 tokens, or as many as answers may have

Tools, scores and what actors say to each other take no time. Prompts, answers and both shares are guesses; so are speeds
of devices whose name is not known, and a model whose shape is not: then the numbers are good for comparing one placement
with another, and say nothing of seconds or bytes. All terms grow with the parameters, so that 7 B stand for any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from rl_api.planner.cost import NEXT_PART_SECONDS, WAKE_SECONDS
from rl_api.planner.of_run import of_run
from rl_api.planner.profile import (
    DecodeProfile,
    DevicesProfile,
    LearnerProfile,
    Memories,
    RoleMemory,
    RunProfile,
    Switches,
    SwitchProfile,
)
from rl_api.run import RunSpec
from rl_api.sizes.learner import (
    GRADIENT,
    MOMENTS,
    WEIGHT,
    LearnerLayout,
    critic_parameters,
    kept_bytes,
    learner_parts,
    policy_parameters,
)
from rl_api.sizes.memory import Device
from rl_api.sizes.run_plan import sampler_layout
from rl_api.sizes.sampler import BLOCK, SamplerLayout, block_bytes, weight_bytes
from rl_api.sizes.shape import ModelShape, model_shape
from rl_api.sizes.speeds import Speed

COMPUTED: Final = 0.4
"""Of a device's operations what passes get: 21 to 46 % are published of large models (Chowdhery et al. 2022, arXiv
2204.02311, table 3), of well-tuned ones a little more."""

READ: Final = 0.7
"""Of the bytes of its memory what decoding gets. Assumed."""

SIGMA: Final = 0.7
MEDIAN: Final = 0.3
"""Of the lengths of answers; the second as a share of the longest allowed."""

PROMPT: Final = 256
"""Tokens of a prompt."""

LENGTHS: Final = 256
"""Answers that stand for all: so many even quantiles."""

NOMINAL: Final = model_shape(
    {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18_944,
        "vocab_size": 152_064,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    }
)
"""Stands for a model whose shape is not known: Qwen2.5-7B."""


@dataclass(frozen=True)
class Prior:
    """A profile with `steps` 0.

    Attributes:
        profile: the numbers.
        guessed: what of them is guessed, as parts of a sentence.
        absolute: whether they are seconds and bytes; else they are good for ratios alone.
        accelerated: whether learners are on accelerators.
    """

    profile: RunProfile
    guessed: tuple[str, ...]
    absolute: bool
    accelerated: bool

    @property
    def words(self) -> str:
        """What it is, as people are told."""
        return "nothing was measured: a prior" + ("" if self.absolute else ", good for ratios alone")


def prior_of(
    spec: RunSpec, shape: ModelShape | None, learner: Speed, sampler: Speed, memory: int | None = None
) -> Prior:
    """What is to be expected of a run whose engine is its own.

    Args:
        spec: the run.
        shape: of its model; None: not known.
        learner, sampler: a device of each.
        memory: bytes of one of its accelerators, held against what both take where `shape` is known; None: nothing is.
    """
    found, algorithm = shape or NOMINAL, spec.algorithm
    sampling, learning = sampler_layout(spec, found), _learner_layout(spec, found)
    devices, stages, limit = (
        spec.sampler.devices or 1,
        sampling.pipeline_parallel,
        spec.sampler.max_new_tokens,
    )
    computed, read = COMPUTED * sampler.operations, READ * sampler.memory
    of_layer = devices // stages
    held = weight_bytes(found, sampling)
    cached = block_bytes(found, sampling) / BLOCK
    lengths, prompt = answer_lengths(limit), min(PROMPT, limit)
    profile = RunProfile(
        steps=0,
        # Two ranks: what a ring takes of any number is in proportion to that.
        devices=DevicesProfile(
            learner=2,
            sampler=spec.sampler.replicas,
            per_sampler=devices,
            memory=memory if shape is not None else None,
        ),
        group_size=algorithm.group_size,
        prompts_per_step=algorithm.prompts_per_step,
        max_staleness=spec.buffer.max_staleness,
        decode=DecodeProfile(
            base=stages * held / read,
            per_active=2 * found.active_parameters / (computed * of_layer),
            per_cached_token=stages * cached / read,
            slots=spec.sampler.max_sequences,
        ),
        prefill_tokens_per_second=computed * devices / (2 * found.active_parameters),
        prompt_tokens=float(prompt),
        reads_again=spec.sampler.engine == "vllm",
        lengths=lengths,
        limit=limit,
        learner=_learner(spec, found, learning, learner),
        publish_seconds=learning.width * found.parameters / learner.link,
        load_seconds=held / read,
        switch=Switches(
            learner=_switch(_kept(found, learning), learner), sampler=_switch(float(held), sampler)
        ),
        memory=Memories()
        if memory is None or shape is None
        else _memories(found, learning, sampling, Device(memory)),
    )
    return Prior(of_run(profile, spec), *_guessed(shape, learner, sampler), accelerated=learner.accelerator)


def answer_lengths(limit: int) -> tuple[int, ...]:
    """Tokens of answers of which none may have more than `limit`: even quantiles of a log-normal distribution, cut there."""
    normal = NormalDist(math.log(MEDIAN * limit), SIGMA)
    scores = (normal.inv_cdf((index + 0.5) / LENGTHS) for index in range(LENGTHS))
    return tuple(min(limit, max(1, round(math.exp(score)))) for score in scores)


def _guessed(shape: ModelShape | None, learner: Speed, sampler: Speed) -> tuple[tuple[str, ...], bool]:
    """What is guessed, and whether the rest makes seconds."""
    found = ["lengths of prompts and answers", "the shares of devices' speed that are reached"]
    unnamed = learner.name is None or sampler.name is None
    if unnamed:
        found.append("the devices' speed itself")
    if shape is None:
        found.append("the model's shape")
    return tuple(found), shape is not None and not unnamed


def _learner_layout(spec: RunSpec, shape: ModelShape) -> LearnerLayout:
    """How the learner is spread, for the bytes and operations of a prior: what does not divide is not refused here."""
    learner, algorithm = spec.learner, spec.algorithm
    lora, known = learner.lora if spec.warm_start is None else None, shape.linears or {}
    trained = None
    if lora is not None:  # a model that stands for another has not its modules
        targets = tuple(one for one in lora.target_modules if one in known)
        trained = shape.lora_parameters(lora.rank, targets)
    longest = -(-spec.sampler.max_new_tokens // learner.context_size)
    return LearnerLayout(
        ranks=learner.ranks,
        shard=(learner.fsdp_size or learner.ranks) if learner.parallelism == "fsdp2" else 1,
        tokens=max(learner.tokens_per_micro_batch, longest),
        longest=longest,
        context=learner.context_size,
        checkpointing=learner.activation_checkpointing,
        half=spec.model.dtype == "bfloat16",
        trained=trained,
        reference=bool(algorithm.kl.coefficient),
        critic=algorithm.value_model is not None,
        copied=False,
        offload=learner.optimizer_offload,
    )


def _learner(spec: RunSpec, shape: ModelShape, layout: LearnerLayout, speed: Speed) -> LearnerProfile:
    algorithm = spec.algorithm
    forward = 2 * shape.active_parameters / (COMPUTED * speed.operations)
    learned = (3 if layout.trained is None else 2) + layout.checkpointing
    updates = algorithm.epochs * algorithm.mini_batches
    anew = updates > 1 and algorithm.loss.proximal == "recomputed"
    trained, read = _trained(shape, layout), READ * speed.memory
    gathered = 3 * layout.width * shape.parameters / speed.link if layout.shard > 1 else 0.0
    # Within a shard gradients have been summed with the passes.
    summed = GRADIENT * trained / layout.shard if layout.shard < layout.ranks or layout.shard == 1 else 0.0
    moved = 2 * MOMENTS * trained / layout.shard / speed.host if layout.offload and speed.accelerator else 0.0
    return LearnerProfile(
        alpha=NEXT_PART_SECONDS + gathered * algorithm.epochs,
        per_pass=algorithm.epochs
        * (2 * layout.width * shape.parameters + 2 * GRADIENT * trained / layout.shard)
        / read,
        beta=learned * forward * algorithm.epochs,
        all_reduce=updates * summed / speed.link,
        optimizer=updates * (28 * trained / layout.shard / read + moved),
        log_prob=forward * (layout.reference + anew),
        value=forward * (learned * algorithm.epochs + 1) * layout.critic,
    )


def _trained(shape: ModelShape, layout: LearnerLayout) -> int:
    """Parameters that learn, of policy and critic."""
    trained = policy_parameters(shape, layout)[1]
    return trained + (critic_parameters(shape, layout)[1] if layout.critic else 0)


def _kept(shape: ModelShape, layout: LearnerLayout) -> float:
    """Bytes of a rank that leave its device with it: weights, gradients, and moments that are there."""
    weights = policy_parameters(shape, layout)[0]
    if layout.reference and layout.trained is None:
        weights += shape.parameters
    if layout.critic:
        weights += critic_parameters(shape, layout)[0]
    of_trained = GRADIENT + (0 if layout.offload else MOMENTS)
    return (WEIGHT * weights + of_trained * _trained(shape, layout)) / layout.shard


def _switch(size: float, speed: Speed) -> SwitchProfile:
    seconds = size / speed.host
    return SwitchProfile(onload=seconds, offload=seconds, wake=WAKE_SECONDS)


def _memories(shape: ModelShape, learner: LearnerLayout, sampler: SamplerLayout, device: Device) -> Memories:
    """Bytes of tensors; what processes take beside them `of_run` adds."""
    parts = learner_parts(shape, learner, device)
    kept, divided = kept_bytes(parts), learner.shard > 1
    # As of one of the two ranks that devices are said to be.
    share = learner.shard / 2 if divided else 1.0
    return Memories(
        learner=RoleMemory(
            weights=parts.weights * share,
            moments=(kept - parts.weights) * share,
            activations_per_token=(parts.total - kept - parts.overhead) / learner.tokens,
            divided=divided,
        ),
        sampler=RoleMemory(
            weights=weight_bytes(shape, sampler), cache_bytes_per_token=block_bytes(shape, sampler) / BLOCK
        ),
    )
