"""What a loss is divided by: of the whole batch, so that micro-batches and ranks add. Plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


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

    def __add__(self, other: LossDenominators) -> LossDenominators:
        """Of two parts of one batch together."""
        return replace(self, tokens=self.tokens + other.tokens, sequences=self.sequences + other.sequences)

    def undivided(self) -> LossDenominators:
        """With these a loss is `factor` too large: for a part of a batch whose counts are not known yet."""
        return replace(self, tokens=1, sequences=1)

    def factor(self, aggregation: str) -> float:
        """What makes a loss that was computed with `undivided` ones a loss over this batch: every aggregation
        (`losses.aggregation_weights`) divides by one count of the batch, beside what a sequence knows of itself."""
        return 1.0 / max(1, self.tokens if aggregation == "tokenMean" else self.sequences)
