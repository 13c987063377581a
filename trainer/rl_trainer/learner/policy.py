"""The policy as one module: log-probs and entropy of the trained tokens of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from rl_trainer.algorithms.token_log_probs import OURS, head_token_log_probs, token_log_probs
from rl_trainer.learner.batch import MicroBatch

Precision = Callable[[], AbstractContextManager[object]]
"""Makes the context that a forward pass runs in."""


class Policy(nn.Module):
    """A model and the head's log-softmax in one `forward`, so that a divided model is gathered for the head as for a layer.

    `model`: a `Decoder` or `LibraryModel`. `way`: how that log-softmax is computed, see `head_choice`.
    """

    def __init__(self, model: nn.Module, precision: Precision):
        super().__init__()
        self.model, self.precision, self.way = model, precision, OURS

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool = True) -> tuple[Tensor, Tensor]:
        """Log-probs [N] of the targets and entropies [N] of their distributions, both fp32.

        `entropy`: False: whatever costs least takes the entropies' place.
        """
        model, targets = self.model, batch.targets
        with self.precision():
            hidden, own = model.own_hidden_at(  # type: ignore[operator]
                batch.input_ids, batch.attention_mask, batch.positions, batch.shared
            )
            if own is not None:
                targets = targets[own]
            if model.head_weight is None:
                log_probs, entropies = token_log_probs(hidden, targets, temperature)
            else:
                log_probs, entropies = head_token_log_probs(
                    hidden,
                    model.head_weight,  # type: ignore[arg-type]
                    targets,
                    temperature,
                    way=self.way,
                    entropy=entropy,
                )
        if own is not None:
            log_probs, entropies = model.context.joined(torch.stack((log_probs, entropies)), own)  # type: ignore[union-attr, operator]
        # Not the views that these are: FSDP2 warns of them.
        return log_probs.clone(), entropies.clone()
