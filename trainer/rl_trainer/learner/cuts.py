"""How one rank's samples become micro-batches of its model, each within the budget of tokens; the last cut is kept."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rl_trainer.learner.packing import micro_batches, packed_micro_batches
from rl_trainer.trajectory import Trajectory

# Widths of the model at which attention over a row costs as much as the products of a layer: 4 W H against 24 H^2
# operations for each token (Kaplan et al. 2020, arXiv 2001.08361, table 1).
ATTENTION_SCALE = 6


class Cuts:
    """Cuts of one rank.

    Args:
        budget: tokens of a micro-batch in one process.
        context: processes that have a part of its tokens each.
    """

    def __init__(self, budget: int, context: int = 1) -> None:
        self._budget, self._context = budget * context, context
        # Of what was cut last: lengths and whether rows are shared, and the micro-batches.
        self._last: tuple[tuple[list[int], bool], list[list[int]]] = ([], False), []

    @property
    def largest_pass(self) -> int:
        """Tokens of this process in the largest micro-batch of what was cut last."""
        (lengths, _), cuts = self._last
        most = max((sum(lengths[index] for index in cut) for cut in cuts), default=0)
        return -(-most // self._context)

    def of(self, samples: Sequence[Trajectory], model: nn.Module) -> list[list[int]]:
        """Indices of `samples` by micro-batch; `model`: a `Decoder` or `LibraryModel`."""
        lengths = [len(sample.tokens) for sample in samples]
        if not samples:
            return []
        # The same samples are cut for their estimates and for the update: seconds of a CPU where there are thousands.
        wanted = lengths, bool(model.packs)
        if wanted != self._last[0]:
            self._last = wanted, self._new(lengths, model)
        return self._last[1]

    def _new(self, lengths: Sequence[int], model: nn.Module) -> list[list[int]]:
        if not model.packs:
            return micro_batches(lengths, self._budget)
        scale = ATTENTION_SCALE * model.hidden_size  # type: ignore[operator]
        return packed_micro_batches(lengths, self._budget, attention_scale=scale, one_row=model.one_row)  # type: ignore[arg-type]
