"""Memory of one device of a model that scores, and whether it fits. Pure.

The model is computed by the library in float32, keeps no keys and values, and a judge's logits are made only at places where
some text ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_api.sizes.memory import Device, Parts, gigabytes, parameters
from rl_api.sizes.shape import ModelShape
from rl_api.task import RewardModelSpec

WIDTH = 4
"""Bytes of a number."""


@dataclass(frozen=True)
class ScoringLayout:
    """What one worker computes at once: `texts` of up to `length` tokens; `judge`: the model has its output head, else one
    row in its place."""

    judge: bool
    texts: int
    length: int

    @classmethod
    def of(cls, model: RewardModelSpec, shape: ModelShape, length: int) -> ScoringLayout:
        """Of `task.rewardModel`, whose prompts and completions have up to `length` tokens together. A classifier whose
        configuration names no token for padding takes one text at a time."""
        judge = model.kind == "judge"
        return cls(judge, model.batch_size if judge or shape.pads else 1, min(length, shape.max_positions))


def scoring_parts(shape: ModelShape, layout: ScoringLayout, device: Device) -> Parts:
    """Bytes on the device of a worker."""
    count = shape.parameters
    if not layout.judge:
        count += shape.hidden - (0 if shape.tied else shape.vocab * shape.hidden)
    return Parts(weights=WIDTH * count, activations=activation_bytes(shape, layout), overhead=device.overhead)


def activation_bytes(shape: ModelShape, layout: ScoringLayout) -> int:
    """The highest point of a forward pass.

    Of each token 5 H for embeddings, inputs and norm; queries, keys, values, both of these once more for each head of
    queries, and what attention gives, or if these are wider gate, up and their product (where gate and up are one matrix
    the activation too, without a gate the activation's five), and where there are experts what each of a token's reads and
    gives, and that weighted. Of each text the mask of attention, a byte for each pair of tokens, and the same in float32.
    Of a judge the logits.
    """
    texts, length = layout.texts, layout.length
    attention = (4 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    wide = 5 if not shape.gated else 4 if shape.packed else 3
    inner = wide * shape.inner + 3 * shape.experts_per_token * shape.hidden
    of_token = WIDTH * (5 * shape.hidden + max(attention, inner))
    logits = WIDTH * (min(texts, length) + 1) * shape.vocab if layout.judge else 0
    return texts * (length * of_token + (1 + WIDTH) * length**2 + logits)


def scoring_misfit(shape: ModelShape, layout: ScoringLayout, device: Device) -> str | None:
    """A sentence where a worker's device has too little room, with the smallest change that would do; None: it fits."""
    parts = scoring_parts(shape, layout, device)
    if parts.total <= device.memory:
        return None
    found = (
        f"reward model: {parameters(shape.parameters)} need {gigabytes(parts.weights)} on one {device.word}"
    )
    if parts.weights <= device.memory:
        what = f"a forward pass of {layout.texts} texts of {layout.length} tokens"
        found += f", and {what} {gigabytes(parts.total - parts.weights)} beside them"
    return f"{found}; {_change(shape, layout, device)}"


def _change(shape: ModelShape, layout: ScoringLayout, device: Device) -> str:
    texts = layout.texts // 2
    while texts:
        fewer = ScoringLayout(layout.judge, texts, layout.length)
        if scoring_parts(shape, fewer, device).total <= device.memory:
            return f"set task.rewardModel.batchSize: {texts}"
        texts //= 2
    if device.accelerator:
        return "no batchSize would do: take larger devices"
    need = scoring_parts(shape, layout, device).total - device.overhead
    return f"set task.rewardModel.memory: {-(-need // 2**30)}Gi, or more"
