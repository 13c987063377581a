"""Where ours is meant to differ: each row of "Conventions that differ from peers" in docs/algorithms.md, shown."""

from __future__ import annotations

from dataclasses import replace

import openrlhf_peer
import torch
import trl_peer
import verl_peer
from numerics_batches import Batch, agree, random_batch
from torch import Tensor

from rl_trainer.algorithms.advantages import batch_normalized_advantages, group_advantages
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.gae import gae
from rl_trainer.algorithms.importance import ImportanceConfig
from rl_trainer.algorithms.losses import PolicyLossConfig, policy_loss
from rl_trainer.algorithms.reward_shaping import overlong_penalty


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def ours(batch: Batch, config: PolicyLossConfig | None = None, **inputs: Tensor) -> Tensor:
    return policy_loss(
        batch.log_probs,
        batch.token_advantages,
        batch.mask,
        LossDenominators.from_lengths(batch.lengths),
        config or PolicyLossConfig(importance=ImportanceConfig(kind="none")),
        old_log_probs=batch.old,
        sampler_log_probs=batch.sampler,
        **inputs,
    ).loss


def test_a_group_of_one_has_advantage_0_where_verl_has_the_reward() -> None:
    batch = replace(random_batch(0, 2, 1, 3), rewards=torch.tensor([0.5, 2.0], dtype=torch.float64))
    advantages, _ = group_advantages(batch.rewards.numpy(), batch.group_ids)
    assert advantages.tolist() == [0.0, 0.0]
    agree(verl_peer.advantages("grpo", batch)[:, 0], batch.rewards)


def test_equal_rewards_have_advantage_0_where_verl_divides_their_rounding_by_epsilon() -> None:
    batch = replace(random_batch(0, 1, 3, 1), rewards=torch.full((3,), 1e9 / 3, dtype=torch.float64))
    batch.rewards[0] *= 1.0 + 2e-16  # the same sum in another order
    advantages, stats = group_advantages(batch.rewards.numpy(), batch.group_ids)
    assert advantages.tolist() == [0.0, 0.0, 0.0] and stats.zero_variance_groups == 1
    assert verl_peer.advantages("grpo", batch).abs().max() > 0.01


def test_a_sequence_without_trained_tokens_leaves_the_count_where_trl_keeps_it() -> None:
    batch = random_batch(1, 2, 2, 6)
    batch.mask[3] = 0.0
    config = PolicyLossConfig(aggregation="sequenceMean", importance=ImportanceConfig(kind="none"))
    agree(ours(batch, config), 4 / 3 * trl_peer.grpo_loss(batch.log_probs, batch, loss_type="grpo"))


def test_what_the_sampler_ratio_masks_stays_in_the_denominator_where_verl_shrinks_it() -> None:
    """verl's rejection changes the mask that the loss is divided by; its IcePop weights, TRL and OpenRLHF do not."""
    batch = random_batch(2, 2, 3, 12)
    kept = verl_peer.rejection_mask(batch.old - batch.sampler, batch.mask, "seq_mean_k1", "0.9_1.1")
    assert 0 < kept.sum() < batch.mask.sum()
    mask = ImportanceConfig(kind="mask", level="geometric", low=1 / 1.1, high=1 / 0.9)
    theirs = verl_peer.policy_loss("vanilla", batch.log_probs, batch, mask=kept)
    agree(ours(batch, PolicyLossConfig(importance=mask)), theirs * kept.sum() / batch.mask.sum())


def test_gae_carries_over_an_observation_where_openrlhf_discounts_and_takes_its_value_for_0() -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    values = torch.tensor([[0.5, 9.0, 0.25]], dtype=torch.float64)
    rewards = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    advantages, _ = gae(rewards, values, mask, gamma=0.5, lam=1.0)
    agree(advantages, torch.tensor([[0.5 * 0.25 - 0.5 + 0.5 * 0.75, 0.0, 0.75]], dtype=torch.float64))
    theirs, _ = openrlhf_peer.gae(rewards, values, mask, 0.5, 1.0)
    agree(theirs[0, 0], number(0.5 * 0.0 - 0.5 + 0.5 * (0.5 * 0.25 + 0.5 * 0.75)))


def test_batch_normalised_returns_have_epsilon_on_the_deviation_where_verl_has_it_in_the_variance() -> None:
    returns = [[0.0, 1e-4], [2e-4]]
    mine = torch.tensor([x for part in batch_normalized_advantages(returns, 1e-6) for x in part])
    agree(mine, torch.tensor([-1.0, 0.0, 1.0]).double() * 1e-4 / (1e-4 + 1e-6))
    mask = torch.ones(1, 3, dtype=torch.float64)
    theirs = verl_peer.masked_whiten(torch.tensor([[0.0, 1e-4, 2e-4]], dtype=torch.float64), mask)
    agree(theirs, torch.tensor([[-1.0, 0.0, 1.0]]).double() * 1e-4 / (1e-8 + 1e-8) ** 0.5)


def test_verl_has_a_dual_clip_of_3_unless_told_otherwise_and_ours_has_none() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = replace(random_batch(0, 1, 1, 1), log_probs=-one, old=-3 * one, token_advantages=-one, mask=one)
    agree(ours(batch), number(2.0).exp())
    agree(verl_peer.policy_loss("vanilla", batch.log_probs, batch, dual_clip=3.0), number(3.0))


def test_the_overlong_penalty_ends_at_the_limit_where_verl_goes_on_falling() -> None:
    lengths = [100, 120]
    mine = torch.from_numpy(overlong_penalty(lengths, 100, 0.2, 1.0))
    agree(mine, torch.tensor([-1.0, -1.0], dtype=torch.float64))
    agree(openrlhf_peer.overlong_penalties(lengths, 100, 20, 1.0), mine)
    agree(verl_peer.overlong_penalties(lengths, 100, 20, 1.0), torch.tensor([-1.0, -2.0]).double())
