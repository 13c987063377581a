"""Each recipe as a whole, from rewards to the gradient, against verl configured to do the same."""

from __future__ import annotations

from math import ceil
from types import SimpleNamespace

import pytest
import torch
import verl_peer
from numerics_batches import Batch, same_function
from torch import Tensor

from rl_api import RunSpec
from rl_api.recipes import RECIPES
from rl_trainer.algorithms.batch_advantages import batch_advantages, kl_in_reward
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.losses import policy_loss
from rl_trainer.algorithms.value_targets import ValueTargets
from rl_trainer.learner.objective import policy_loss_config

# verl's estimator with its options, objective, aggregation, and coefficient of the KL in the reward
VERL = {
    "cispo": ("grpo", {}, "cispo", "token-mean", 0.0),
    "dapo": ("grpo", {}, "vanilla", "token-mean", 0.0),
    "dr_grpo": ("grpo", {"norm_adv_by_std_in_grpo": False}, "vanilla", "seq-mean-token-sum-norm", 0.0),
    "grpo": ("grpo", {}, "vanilla", "token-mean", 0.0),
    "gspo": ("grpo", {}, "gspo", "seq-mean-token-mean", 0.0),
    "ppo": ("gae", {"gamma": 1.0, "lam": 0.95}, "vanilla", "token-mean", 0.0),
    "reinforce_pp": (
        "reinforce_plus_plus",
        {"config": SimpleNamespace(gamma=1.0)},
        "vanilla",
        "token-mean",
        0.01,
    ),
    "rloo": ("rloo", {}, "gpg", "seq-mean-token-sum", 0.05),
}
CLIPS = {"cispo": (1.0, 4.0), "dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4)}


def our_loss(log_probs: Tensor, batch: Batch, spec: RunSpec) -> Tensor:
    kept = batch.mask != 0
    size = batch.group_size
    groups = [
        SimpleNamespace(
            group_id=str(start),
            rewards=batch.rewards[start : start + size].tolist(),
            lengths=batch.lengths[start : start + size],
        )
        for start in range(0, len(batch.rewards), size)
    ]
    token_kl = None
    if kl_in_reward(spec):
        token_kl = [row[m].numpy() for row, m in zip(batch.old - batch.reference, kept, strict=True)]
    values = [row[m].numpy() for row, m in zip(batch.values, kept, strict=True)]
    advantages, _ = batch_advantages(spec, groups, token_kl, values)
    on_tokens = torch.zeros_like(batch.mask)
    for row, advantage in enumerate(advantages):
        if isinstance(advantage, ValueTargets):
            advantage = advantage.advantages
        on_tokens[row, kept[row]] = torch.as_tensor(advantage, dtype=torch.float64)
    config = policy_loss_config(spec)
    return policy_loss(
        log_probs,
        on_tokens,
        batch.mask,
        LossDenominators.from_lengths(batch.lengths, spec.sampler.max_new_tokens),
        config,
        old_log_probs=batch.old,
        sampler_log_probs=batch.sampler,
    ).loss


def verl_loss(log_probs: Tensor, batch: Batch, recipe: str, limit: int) -> Tensor:
    estimator, options, objective, aggregation, kl_coefficient = VERL[recipe]
    low, high = CLIPS.get(recipe, (0.2, 0.2))
    rewards = torch.zeros_like(batch.mask)
    last = (batch.mask * torch.arange(1, batch.mask.shape[1] + 1)).argmax(dim=1)
    rewards[torch.arange(len(last)), last] = batch.rewards
    if recipe == "dapo":
        penalties = verl_peer.overlong_penalties(batch.lengths, limit, limit // 5, 1.0)
        rewards[torch.arange(len(last)), last] += penalties
    rewards = verl_peer.compute_rewards(rewards, batch.old, batch.reference, kl_coefficient) * batch.mask
    if estimator == "gae":
        advantages, _ = verl_peer.gae(rewards, batch.values, batch.mask, **options)
    else:
        advantages = verl_peer.advantages(estimator, batch, rewards, **options)
    return verl_peer.policy_loss(
        objective,
        log_probs,
        batch,
        advantages=advantages,
        aggregation=aggregation,
        weights=verl_peer.importance_weights(batch.old - batch.sampler, batch.mask, "token", 2.0),
        horizon=limit,
        low=low,
        high=high,
    )


@pytest.mark.parametrize("recipe", sorted(VERL))
def test_recipe_as_verl(batch: Batch, recipe: str) -> None:
    """verl's epsilon is the same for a group, and smaller, in the variance, for a batch."""
    limit = 5 * ceil(max(batch.lengths) / 5)
    epsilon = 0.0 if recipe == "reinforce_pp" else 1e-6
    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"name": recipe, "advantage": {"epsilon": epsilon}},
            "sampler": {"maxNewTokens": limit},
        }
    )
    same_function(
        lambda point: our_loss(point, batch, spec),
        lambda point: verl_loss(point, batch, recipe, limit),
        batch.log_probs,
    )


def test_every_recipe_is_compared() -> None:
    assert sorted(VERL) == sorted(RECIPES)
