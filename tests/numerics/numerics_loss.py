"""Our policy loss of a batch, as the comparisons call it."""

from __future__ import annotations

from typing import Any

from numerics_batches import Batch
from torch import Tensor

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.importance import ImportanceConfig
from rl_trainer.algorithms.losses import PolicyLossConfig, policy_loss

HORIZON = 50
# ours and verl's
AGGREGATIONS = [
    ("tokenMean", "token-mean"),
    ("sequenceMean", "seq-mean-token-mean"),
    ("sequenceSum", "seq-mean-token-sum"),
    ("constant", "seq-mean-token-sum-norm"),
]
OFF = ImportanceConfig(kind="none")


def ours(
    log_probs: Tensor,
    batch: Batch,
    objective: str = "ppoClip",
    *,
    advantages: Tensor | None = None,
    entropy: Tensor | None = None,
    mask: Tensor | None = None,
    importance: ImportanceConfig = OFF,
    **choices: Any,
) -> Tensor:
    mask = batch.mask if mask is None else mask
    lengths = [int(count) for count in mask.sum(dim=1)]
    return policy_loss(
        log_probs,
        batch.token_advantages if advantages is None else advantages,
        mask,
        LossDenominators.from_lengths(lengths, HORIZON),
        PolicyLossConfig(objective=objective, importance=importance, **choices),
        old_log_probs=batch.old,
        sampler_log_probs=batch.sampler,
        reference_log_probs=batch.reference,
        entropy=entropy,
    ).loss
