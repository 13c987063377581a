"""What a loss is divided by: of the whole batch, so that micro-batches and ranks add. Plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LossDenominators:
    """What the loss is divided by: counts over the whole batch of one optimizer step, all ranks.

    Attributes:
        tokens: trained tokens.
        sequences: sequences with at least one trained token (fully masked ones leave the count).
        constant_length: the fixed length of the `constant` aggregation (Dr. GRPO: the most new tokens allowed).
    """

    tokens: int
    sequences: int
    constant_length: int | None = None

    @classmethod
    def from_lengths(
        cls, trained_tokens: Iterable[int], constant_length: int | None = None
    ) -> LossDenominators:
        """Count from the number of trained tokens of every sequence of the batch."""
        counts = list(trained_tokens)
        return cls(sum(counts), sum(count > 0 for count in counts), constant_length)
