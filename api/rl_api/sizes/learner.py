"""Memory of one rank of the learner. Pure.

What is kept for the whole run, in bytes per parameter (Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, section 3.1, with
masters and gradients in fp32):

    weights 4, gradients 4, AdamW's moments 8, KL reference 4, critic 16; each divided by the ranks that share one copy

What a step needs beside it is `gathered_bytes` and `activation_bytes`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rl_api.sizes.memory import PROCESS_OVERHEAD, Device, Parts
from rl_api.sizes.shape import ModelShape

WEIGHT, GRADIENT, MOMENTS = 4, 4, 8
"""Bytes per parameter."""
MOVED: Final = 2**25
"""Parameters whose moments are on an accelerator at once, where they are kept in main memory."""

_CHUNK: Final = 2**24
"""fp32 numbers of logits that exist at once; of their softmax as many on an accelerator, and few on a CPU."""


@dataclass(frozen=True)
class LearnerLayout:
    """How learning is spread, and what is learned.

    Attributes:
        ranks: in all.
        shard: ranks that share one copy (FSDP2); 1: each has a whole one (DDP).
        tokens: of one forward and backward pass, on each rank.
        longest: tokens of one sequence at most on each rank, and so `tokens` is not less.
        context: ranks that share sequences: each has an equal part of the tokens of a pass.
        checkpointing: only the input of every layer is kept for the backward pass.
        half: products are in bfloat16, else in float32; what is kept for the run is float32 in either case.
        trained: parameters that learn beside frozen weights (LoRA); None: all weights do.
        reference: a frozen copy is kept for a KL penalty; with LoRA it costs nothing.
        critic: a value model of the policy's size learns too.
        copied: a checkpoint is copied into main memory before it is written, each rank's part of it; without accelerators
            that is the same memory.
        offload: an accelerator's moments are kept in the main memory of its pod.
    """

    ranks: int = 1
    shard: int = 1
    tokens: int = 16_384
    longest: int = 1
    context: int = 1
    checkpointing: bool = False
    half: bool = True
    trained: int | None = None
    reference: bool = False
    critic: bool = False
    copied: bool = False
    offload: bool = False

    @property
    def copies(self) -> int:
        """Whole copies of the model."""
        return self.ranks // self.shard

    @property
    def width(self) -> int:
        """Bytes of one number in products."""
        return 2 if self.half else 4


def uneven_heads(size: int, heads: int, kv_heads: int) -> str | None:
    """Why `size` processes cannot share the sequences of a model with so many attention heads, of queries and of keys and
    values: in attention each has an equal part of both. None: they can."""
    most = math.gcd(heads, kv_heads)
    if most % size == 0:
        return None
    allowed = ", ".join(str(one) for one in range(1, most + 1) if most % one == 0)
    return (
        f"spec.learner.contextSize: found {size}, allowed for a model of {heads} attention heads and {kv_heads} of keys and "
        f"values: {allowed}"
    )


def learner_parts(shape: ModelShape, layout: LearnerLayout, device: Device) -> Parts:
    """Bytes on each device of the learner, at the highest point of a step."""
    shard, (weights, trained) = layout.shard, policy_parameters(shape, layout)
    value_weights, value_trained = critic_parameters(shape, layout)
    offloaded = layout.offload and device.accelerator
    critic = WEIGHT * value_weights + (GRADIENT + (0 if offloaded else MOMENTS)) * value_trained
    moments = _share(MOMENTS * trained, shard)
    return Parts(
        weights=_share(WEIGHT * weights, shard),
        gradients=_share(GRADIENT * trained, shard),
        moments=min(moments, MOMENTS * MOVED) if offloaded else moments,
        reference=_share(WEIGHT * shape.parameters, shard)
        if layout.reference and layout.trained is None
        else 0,
        critic=_share(critic, shard) if layout.critic else 0,
        gathered=gathered_bytes(shape, layout, accelerator=device.accelerator),
        activations=activation_bytes(shape, layout, accelerator=device.accelerator),
        checkpoint=_share(checkpoint_bytes(shape, layout), layout.ranks)
        if layout.copied and not device.accelerator
        else 0,
        overhead=device.overhead,
    )


def main_memory_bytes(shape: ModelShape, layout: LearnerLayout, ranks: int) -> int:
    """Bytes of the main memory of a pod whose `ranks` have accelerators: moments that are kept there, of the critic too, and
    a checkpoint's copy."""
    copy = ranks * _share(checkpoint_bytes(shape, layout), layout.ranks) if layout.copied else 0
    if not layout.offload:
        return copy
    trained = policy_parameters(shape, layout)[1] + (
        critic_parameters(shape, layout)[1] if layout.critic else 0
    )
    return copy + ranks * (_share(MOMENTS * trained, layout.shard) + PROCESS_OVERHEAD)


def policy_parameters(shape: ModelShape, layout: LearnerLayout) -> tuple[int, int]:
    """Parameters of the policy with its adapters, and those of them that learn."""
    if layout.trained is None:
        return shape.parameters, shape.parameters
    return shape.parameters + layout.trained, layout.trained


def critic_parameters(shape: ModelShape, layout: LearnerLayout) -> tuple[int, int]:
    """The same of a critic: a copy of the policy, with one row in place of an output head of its own; of LoRA's the adapters
    and that row learn."""
    weights, trained = policy_parameters(shape, layout)
    value = weights - (0 if shape.tied else shape.vocab * shape.hidden) + shape.hidden
    return value, value if layout.trained is None else trained + shape.hidden


def checkpoint_bytes(shape: ModelShape, layout: LearnerLayout) -> int:
    """Bytes of one checkpoint: weights 4 per parameter (float32, LoRA's merged), AdamW's moments 8 per one that learns;
    with LoRA the adapters 4; with a critic its weights and moments.

    Groups that wait for training are left out: their size is the task's.
    """
    weights, trained = policy_parameters(shape, layout)
    size = WEIGHT * weights + MOMENTS * trained
    if layout.critic:
        weights, trained = critic_parameters(shape, layout)
        size += WEIGHT * weights + MOMENTS * trained
    return size


def checkpoint_seconds(size: int, bandwidth: float) -> float:
    """Seconds to write `size` bytes at `bandwidth` bytes/s, of all who write together; `bandwidth` > 0."""
    return size / bandwidth


def kept_bytes(parts: Parts) -> int:
    """Of a learner's parts those that are kept between two steps, which shards divide."""
    return parts.weights + parts.gradients + parts.moments + parts.reference + parts.critic


def gathered_bytes(shape: ModelShape, layout: LearnerLayout, *, accelerator: bool = True) -> int:
    """Copies of weights in the type of the products, and gradients that are not yet shared out.

    Divided between ranks (Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277, section 4): two layers at once, the one that
    computes and the one that is fetched ahead; of one layer the gradient, in the products' type and, for its sum over
    ranks, in float32; and in float32 what is in no layer, which is gathered for the whole pass. On CPUs nothing is fetched
    ahead in the backward pass, so that there are two layers in the forward pass, or a gradient in both types. Whole on each
    rank: in float32 nothing; in bfloat16 autocast's copy of every matrix, but with frozen weights and checkpointing of one
    layer only.
    """
    width, layer = layout.width, shape.largest_layer
    if layout.shard > 1:
        gradient = (width + GRADIENT) * layer if layout.trained is None else 0
        layers = 2 * width * layer + gradient
        if not accelerator:
            layers = max(2 * width * layer, gradient)
        return WEIGHT * shape.outside_parameters + layers
    if not layout.half:
        return 0
    return width * (layer if layout.trained is not None and layout.checkpointing else shape.parameters)


def activation_bytes(shape: ModelShape, layout: LearnerLayout, *, accelerator: bool = True) -> int:
    """What a micro-batch's forward pass keeps for its backward pass, at most.

    Without checkpointing that of all layers; with it, the input of each (Chen et al. 2016, arXiv 1604.06174), in
    float32, and all of one.
    """
    layer = layout.tokens * layer_bytes_per_token(shape, layout.width)
    inputs = layout.tokens * shape.layers * shape.hidden * 4
    kept = inputs + layer if layout.checkpointing else shape.layers * layer
    return kept + logits_bytes(shape, layout, accelerator=accelerator)


def layer_bytes_per_token(shape: ModelShape, width: int) -> int:
    """What one layer keeps of one token without checkpointing; `width`: bytes of a number in products.

    Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1, count what every operation of a layer needs in the backward
    pass. The same count here, without dropout, with attention that keeps no scores (Dao et al. 2022, arXiv 2205.14135), with
    fewer heads for keys than for queries and a gated feed-forward layer of width I:

        8 H                      inputs of both norms, float32
        w 2 H                    inputs of the projections to queries, keys, values and to gate, up
        w 3 (q + kv)             queries, keys and values, the same rotated, and what attention gives, q = heads x D
        w 3 I                    gate, up, and the input of the down projection
        4 (heads + 2)            log-sum-exp of every head, scale of both norms

    Families that rltrain's own decoder does not run are computed by the library's modules, whose single operations keep
    more:

        n 8 H                    inputs of n norms, and what these are before their weight, float32 (GPT-2: inputs alone) w
        m H                    inputs of m products; in bfloat16 autocast makes a copy for each of them 8 (q + kv)
        the same as n 8 H of norms over queries and keys, where there are such w 2 (q + kv)             values, rotated
        queries and keys, and what attention gives; one more where they are one product w 4 I                    gate, its
        activation, up, and the input of the down projection (GPT-2: five) 4 (2 k H + 4 I)          in place of the row
        before where there are experts, whose grouped products autocast leaves in float32: with what goes to the k of a
        token and what comes from them

    In bfloat16 norms over queries and keys keep 8 (q + kv) of the own decoder (Qwen3) too, in float32 nothing but scales.
    """
    width_of_heads = (shape.heads + shape.kv_heads) * shape.head_dim
    if shape.fused:
        kept = 2 * shape.hidden + 3 * width_of_heads + 3 * shape.inner
        scales = shape.heads + 2 + shape.head_norms * (shape.heads + shape.kv_heads)
        normed = 8 * width_of_heads * (shape.head_norms and width == 2)
        return 8 * shape.hidden + normed + width * kept + 4 * scales
    products = 2 if width == 4 or shape.packed or not shape.gated else 4 if shape.experts else 5
    kept = products * shape.hidden + (3 if shape.packed else 2) * width_of_heads
    norms = shape.norms * shape.hidden * (8 if shape.gated else 4) + 8 * width_of_heads * shape.head_norms
    inner = width * (4 if shape.gated else 5) * shape.inner
    if shape.experts:
        inner = 4 * (4 * shape.inner + 2 * shape.experts_per_token * shape.hidden)
    return norms + width * kept + inner + 4 * (shape.heads + shape.norms)


def logits_bytes(shape: ModelShape, layout: LearnerLayout, *, accelerator: bool = True) -> int:
    """Of the output head: a chunk of logits with its log-softmax and probabilities in float32, a copy of the head where
    products are in bfloat16, and the head's gradient in float32 before it is added to the others.

    On a CPU the softmax is taken of so few rows at a time that it does not count. What is no more than a chunk is computed
    once: its logits stay until their gradient is there, which makes room before that of the head is made.
    """
    head = shape.vocab * shape.hidden
    rows = min(layout.tokens, max(1, _CHUNK // shape.vocab))
    copies = (layout.width if layout.half else 0) + (GRADIENT if layout.trained is None else 0)
    logits = layout.width * rows * shape.vocab
    if accelerator:
        return logits + 8 * rows * shape.vocab + copies * head
    if rows == layout.tokens:
        return logits + max(logits, copies * head)
    return logits + copies * head


def _share(size: int, shard: int) -> int:
    return -(-size // shard)
