"""Generalised advantage estimation, whitening and returns: pure functions of per-token tensors, time last."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_trainer.algorithms.tokens import masked, working_precision


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float,
    last_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of every sampled token (Schulman et al., arXiv 1506.02438).

    Over the *sampled* tokens of a sequence, t = 1 .. n in order: `d_t = r_t + gamma V_{t+1} - V_t`,
    `A_t = d_t + gamma lam A_{t+1}`, return `A_t + V_t`, with `A_{n+1} = 0` and `V_{n+1} = last_values`. Tokens under
    mask 0 (what a tool or an environment said, padding) are no steps: V_{t+1} and A_{t+1} are carried across them, so
    that an observation neither discounts nor is given credit. A reward that an observation brings belongs on the
    sampled token before it; rewards under mask 0 are ignored.

    Args:
        rewards, values: [..., T].
        mask: [..., T], nonzero: sampled token.
        gamma: discount per sampled token. lam: GAE's lambda.
        last_values: [...], value of the state after the last token, for answers that were cut off; None: 0.

    Returns:
        (advantages, returns), [..., T], 0 under mask 0; float64 where `values` are, else float32; no gradient.
    """
    with torch.no_grad():
        sampled = mask != 0
        step_values = masked(values, sampled)
        step_rewards = masked(rewards, sampled).to(step_values.dtype)
        advantages = torch.zeros_like(step_values)
        advantage = value = step_values.new_zeros(step_values.shape[:-1])
        if last_values is not None:
            value = working_precision(last_values)
        for t in range(step_values.shape[-1] - 1, -1, -1):
            delta = step_rewards[..., t] + gamma * value - step_values[..., t]
            here = sampled[..., t]
            advantage = torch.where(here, delta + gamma * lam * advantage, advantage)
            value = torch.where(here, step_values[..., t], value)
            advantages[..., t] = torch.where(here, advantage, 0.0)
        return advantages, advantages + step_values


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """`(x - mean) / sqrt(var + epsilon)` over all values under the mask; 0 elsewhere.

    The variance is unbiased (divisor n - 1, as verl's `masked_whiten`); one value, or none, becomes 0.

    Args:
        values: any shape. mask: the same shape, nonzero: counts.
        epsilon: added to the variance.

    Returns:
        The same shape, float64 where `values` are, else float32.
    """
    counted = mask != 0
    kept = masked(values, counted)
    count = counted.sum()
    if count < 2:
        return torch.zeros_like(kept)
    centered = torch.where(counted, kept - kept.sum() / count, 0.0)
    return centered * torch.rsqrt(centered.square().sum() / (count - 1) + epsilon)
