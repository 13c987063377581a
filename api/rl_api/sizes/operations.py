"""Floating-point operations of passes over answers, by the shape of a model. Pure.

A product with a matrix takes 2 operations per parameter and token, and its backward pass 2 for the gradients of activations
and 2 for those of weights that learn (Kaplan et al. 2020, arXiv 2001.08361, section 2.1 and table 1). Attention of a token
takes 4 x (heads x head size) operations in each layer for every token that it looks at, itself included; a causal model
looks at half of the square. Its products are of activations alone, so that a backward pass takes twice as many, also where
weights are frozen. What is computed again (activation checkpointing, log-probs of the policy before the update) is no work
of the model and does not count, as in model FLOPs utilisation (Chowdhery et al. 2022, arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_api.run import RunSpec
from rl_api.sizes.shape import ModelShape


def forward_operations(
    shape: ModelShape, lengths: Sequence[int], totals: Sequence[int], prompt: int, *, head: bool = True
) -> float:
    """Of one forward pass over the answers to one prompt, which counts once.

    Args:
        shape: of the model.
        lengths: tokens that were sampled, of each answer; only of these the head is asked.
        totals: all tokens, of each answer: prompt, what was sampled, what tools have said. As many as `lengths`, at least 1.
        prompt: tokens of it, which begin every answer; what tools say comes later, and is each answer's own.
        head: whether it is asked at all.
    """
    return sum(_forward(shape, lengths, totals, prompt, head=head))


def _forward(
    shape: ModelShape, lengths: Sequence[int], totals: Sequence[int], prompt: int, *, head: bool
) -> tuple[float, float]:
    """Those of products with weights, and those of attention."""
    tokens = prompt + sum(total - prompt for total in totals)
    pairs = prompt**2 + sum(total**2 - prompt**2 for total in totals)  # twice those that are looked at
    weights = sum(shape.active_layer_parameters) * tokens
    if head:
        weights += shape.vocab * shape.hidden * sum(lengths)
    return float(2 * weights), float(2 * shape.layers * shape.heads * shape.head_dim * pairs)


def decode_operations(shape: ModelShape, sequences: float, cached: float) -> float:
    """Of one token for each of `sequences`, which look at `cached` tokens' keys and values, all together."""
    weights = sum(shape.active_layer_parameters) + shape.vocab * shape.hidden
    return 2 * weights * sequences + 4 * shape.layers * shape.heads * shape.head_dim * cached


def learning_operations(
    spec: RunSpec, shape: ModelShape, lengths: Sequence[int], totals: Sequence[int], prompt: int
) -> float:
    """Of a run's training step, for the answers to one prompt; arguments as of `forward_operations`.

    A backward pass is two forward ones; of frozen weights (LoRA, whose own are few) one, and of attention, which has none to
    freeze, two all the same. A reference adds a pass; a critic learns as the policy does and says its values before, without
    a head of the vocabulary's size.
    """

    def passes(others: int, *, head: bool) -> float:  # those that learn, and `others`
        weights, attention = _forward(shape, lengths, totals, prompt, head=head)
        epochs, each = spec.algorithm.epochs, 2 if spec.learner.lora is not None else 3
        return (each * epochs + others) * weights + (3 * epochs + others) * attention

    found = passes(int(bool(spec.algorithm.kl.coefficient)), head=True)
    if spec.algorithm.value_model is not None:
        found += passes(1, head=False)
    return found
