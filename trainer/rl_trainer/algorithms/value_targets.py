"""From rewards and values of every sampled token to what policy and critic learn from, over a whole batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ValueTargets:
    """Of one answer, each [S]: one number for each sampled token.

    Attributes:
        advantages: whitened over the batch; what the policy learns from.
        returns: what the critic learns.
        values: the critic's, before the batch's first update.
    """

    advantages: Floats
    returns: Floats
    values: Floats


Advantage = float | Floats | ValueTargets
"""Of one answer: one number for all its tokens, or one for each sampled token, with a critic also what that learns."""


def value_targets(
    rewards: Sequence[Floats], values: Sequence[Floats], *, gamma: float, lam: float
) -> list[ValueTargets]:
    """GAE over each answer (`gae.gae`), its advantages whitened over all tokens of all answers (`gae.whiten`).

    What an environment said between sampled tokens is not in these arrays, and so no step: values and advantages are carried
    across it. An answer ends with its last sampled token, whose next value is 0, also where it was cut off.

    Args:
        rewards: N arrays [S_i] (`reward_shaping.token_rewards`).
        values: N arrays [S_i] of the critic.
        gamma: discount per sampled token. lam: GAE's lambda.

    Returns:
        N targets.

    Raises:
        ValueError: lengths differ.
    """
    import torch  # here: the driver computes advantages, and starts faster while another thread imports it

    from rl_trainer.algorithms.gae import gae, whiten

    lengths = [len(part) for part in rewards]
    if lengths != [len(part) for part in values]:
        raise ValueError("rewards and values differ in their lengths")
    if not lengths:
        return []
    inside = np.arange(max(lengths)) < np.array(lengths, dtype=np.int64)[:, None]

    def padded(parts: Sequence[Floats]) -> torch.Tensor:
        array = np.zeros(inside.shape)
        array[inside] = np.concatenate(parts)
        return torch.from_numpy(array)

    mask = torch.from_numpy(inside)
    advantages, returns = gae(padded(rewards), padded(values), mask, gamma=gamma, lam=lam)
    white = whiten(advantages, mask)
    return [
        ValueTargets(
            white[row, :length].numpy(),
            returns[row, :length].numpy(),
            np.asarray(values[row], dtype=np.float64),
        )
        for row, length in enumerate(lengths)
    ]


def value_metrics(targets: Sequence[ValueTargets]) -> dict[str, float]:
    """How good the critic was before it learned from this batch, over all tokens.

    Returns:
        `value_mean`, `return_mean`, and `explained_variance` `1 - Var(G - V) / Var(G)`: 1 for a critic that is always
        right, 0 for one that is no better than a constant; left out where all returns are equal. Empty without tokens.
    """
    returns = np.concatenate([one.returns for one in targets]) if targets else np.zeros(0)
    if not len(returns):
        return {}
    values = np.concatenate([one.values for one in targets])
    metrics = {"value_mean": float(values.mean()), "return_mean": float(returns.mean())}
    spread = float(returns.var())
    if spread > 0.0:
        metrics["explained_variance"] = 1.0 - float((returns - values).var()) / spread
    return metrics
