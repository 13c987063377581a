"""Whether a role fits into its devices, and the smallest change with which it would. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rl_api.sizes.learner import LearnerLayout, kept_bytes, learner_parts
from rl_api.sizes.memory import Device, gigabytes, parameters
from rl_api.sizes.sampler import BLOCK, SamplerLayout, block_bytes, sampler_memory
from rl_api.sizes.shape import ModelShape

MOST_SHARDS = 1024
"""Shards of one copy that are tried."""
DEVICES_PER_POD = 8
"""Accelerators that one pod is thought to have at most, where nobody says."""


@dataclass(frozen=True)
class LearnerChange:
    """A layout that fits, and what has to be set for it, as a sentence's end."""

    layout: LearnerLayout
    words: str


def learner_misfit(shape: ModelShape, layout: LearnerLayout, device: Device) -> str | None:
    """A sentence where a rank needs more than its device has, with the smallest change that would do; None: it fits."""
    parts = learner_parts(shape, layout, device)
    if parts.total <= device.memory:
        return None
    kept = kept_bytes(parts)
    where = f"on one {device.word}" if layout.shard == 1 else f"on each of {layout.shard} {device.word}s"
    beside = parts.total - kept
    found = f"learner: {parameters(shape.parameters)} need {gigabytes(kept)} {where}"
    if kept <= device.memory:
        found += f", and a step {gigabytes(beside)} beside them"
    change = smallest_change(shape, layout, device)
    return f"{found}; {change.words if change else 'no number of shards would do: take larger devices'}"


def smallest_change(shape: ModelShape, layout: LearnerLayout, device: Device) -> LearnerChange | None:
    """The layout nearest to `layout` that fits; None: none does.

    More shards cost as much as smaller micro-batches; of equal costs the larger micro-batch is taken, and activations that
    are kept before activations that are computed again. Micro-batches of less than the longest sequence are of shorter ones.
    """
    best: tuple[float, LearnerLayout] | None = None
    halves = {layout.tokens >> halvings for halvings in range(layout.tokens.bit_length())}
    for tokens in sorted(halves | {min(layout.longest, layout.tokens)}, reverse=True):
        shorter = replace(layout, tokens=tokens, longest=min(layout.longest, tokens))
        found = fewest_shards(shape, shorter, device)
        cost = 0.0 if found is None else found.shard * layout.tokens / tokens
        if found is not None and (best is None or cost < best[0]):
            best = (cost, found)
    return None if best is None else LearnerChange(best[1], _words(layout, best[1]))


def fewest_shards(shape: ModelShape, layout: LearnerLayout, device: Device) -> LearnerLayout | None:
    """The layout with the fewest shards that fits, at least those of `layout`, of the micro-batch as it is; None: none does.

    Tried are powers of two; of as many shards the one that keeps activations, where `layout` does.
    """
    fitting = list[LearnerLayout]()
    for checkpointing in sorted({layout.checkpointing, True}):
        shard = layout.shard
        while shard <= MOST_SHARDS:
            ranks = math.ceil(layout.ranks / shard) * shard
            one = replace(layout, shard=shard, ranks=ranks, checkpointing=checkpointing)
            if learner_parts(shape, one, device).total <= device.memory:
                fitting.append(one)
                break
            shard = 1 << shard.bit_length()
    return min(fitting, key=lambda one: one.shard, default=None)


def _words(before: LearnerLayout, after: LearnerLayout) -> str:
    words = []
    if after.shard > before.shard:
        size = f", learner.fsdpSize: {after.shard}" if after.shard < after.ranks else ""
        more = f", with {after.ranks} ranks in place of {before.ranks}" if after.ranks > before.ranks else ""
        words.append(f"shard over {after.shard} (learner.parallelism: fsdp2{size}){more}")
    if after.checkpointing and not before.checkpointing:
        words.append("set learner.activationCheckpointing: true")
    if after.longest < before.longest:
        # A longer sequence would be a pass of its own, of whatever size the others are.
        both = "sampler.maxNewTokens and learner.tokensPerMicroBatch"
        if after.context > 1:
            both = f"sampler.maxNewTokens: {after.context * after.tokens} and learner.tokensPerMicroBatch"
        words.append(f"set {both}: {after.tokens}, or at most that")
    elif after.tokens < before.tokens:
        words.append(f"set learner.tokensPerMicroBatch: {after.tokens}")
    return ", and ".join(words)


def sampler_misfit(
    shape: ModelShape, layout: SamplerLayout, device: Device, per_pod: int = DEVICES_PER_POD
) -> str | None:
    """A sentence where a sampler's device has too little room, with the smallest change that would do; None: it fits.

    Room is needed for weights, and for keys and values: with vLLM of one sequence of the greatest length;
    with the torch engine of all.
    """
    memory = sampler_memory(shape, layout, device)
    if _holds(shape, layout, device):
        return None
    share = f", {layout.utilization:g} of it for vLLM" if memory.allowed < device.memory else ""
    count = layout.devices
    where = (f"on one {device.word}" if count == 1 else f"on each of {count} {device.word}s") + share
    weights, beside = memory.parts.weights, memory.parts.activations + memory.parts.overhead
    if memory.left < 0:
        found = f"sampler: {parameters(shape.parameters)} need {gigabytes(weights)} {where}"
        if weights <= memory.allowed:
            found += f", and a forward pass {gigabytes(beside)} beside them"
    else:
        count, length = 1 if _fills(layout, device) else layout.sequences, layout.length
        what = f"a sequence of {length} tokens" if count == 1 else f"{count} sequences of {length} tokens"
        need = block_bytes(shape, layout) * count * -(-length // BLOCK)
        found = f"sampler: keys and values of {what} need {gigabytes(need)} {where}, and {gigabytes(memory.left)} are left"
    return f"{found}; {_sampler_change(shape, layout, device, memory.left, per_pod)}"


def wider_sampler(
    shape: ModelShape, layout: SamplerLayout, device: Device, per_pod: int = DEVICES_PER_POD
) -> SamplerLayout | None:
    """The layout with the fewest devices that fits; None: none does.

    Tried are tensor-parallel sizes that divide the heads, then more pipeline stages, in as many pods as it has, each of
    `per_pod` devices at most; then the same over more pods, where the devices of a stage are still in one.
    """
    for more_pods in (False, True):
        for stages in (layout.pipeline_parallel * 2**power for power in range(6)):
            size = layout.tensor_parallel
            while size <= per_pod and stages <= shape.layers:
                pods = _fewest_pods(stages, size, per_pod, layout.pods)
                one = replace(layout, tensor_parallel=size, pipeline_parallel=stages, pods=pods)
                allowed = (more_pods or pods == layout.pods) and shape.heads % size == 0
                if allowed and _holds(shape, one, device):
                    return one
                size *= 2
    return None


def _fewest_pods(stages: int, size: int, per_pod: int, least: int) -> int:
    """The smallest number of pods, `least` or more, each with as many whole stages and at most `per_pod` devices."""
    found = (pods for pods in range(least, stages) if stages % pods == 0 and stages // pods * size <= per_pod)
    return next(found, max(least, stages))


def _fills(layout: SamplerLayout, device: Device) -> bool:
    """Whether the engine takes all that it may, and makes do with that."""
    return layout.engine == "vllm" and device.accelerator


def _holds(shape: ModelShape, layout: SamplerLayout, device: Device) -> bool:
    memory = sampler_memory(shape, layout, device)
    if _fills(layout, device):
        return memory.left > 0 and memory.tokens >= layout.length
    return memory.left >= memory.parts.caches


def _sampler_change(shape: ModelShape, layout: SamplerLayout, device: Device, left: int, per_pod: int) -> str:
    vllm = layout.engine == "vllm"
    if vllm and left >= block_bytes(shape, layout):
        fitting = left // block_bytes(shape, layout) * BLOCK
        if fitting >= layout.length // 4:
            return f"set sampler.maxModelLen: {fitting}, or at most that"
    if not vllm and left > 0:
        fitting = left // (block_bytes(shape, layout) * -(-layout.length // BLOCK))
        if fitting:
            return f"set sampler.maxSequences: {fitting}"
    wider = wider_sampler(shape, layout, device, per_pod) if device.accelerator else None
    if wider is None:
        return (
            "no number of devices would do: take larger ones"
            if device.accelerator
            else "give the pods more memory"
        )
    words = [] if vllm else ["set sampler.engine: vllm"]
    if wider.tensor_parallel > layout.tensor_parallel:
        words.append(f"set sampler.tensorParallelSize: {wider.tensor_parallel}")
    if wider.pipeline_parallel > layout.pipeline_parallel:
        words.append(f"set sampler.pipelineParallelSize: {wider.pipeline_parallel}")
    if wider.pods > layout.pods:
        words.append(f"set sampler.podsPerReplica: {wider.pods}")
    return " and ".join(words)
