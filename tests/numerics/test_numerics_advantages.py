"""Advantages from rewards, without a critic, and what is added to rewards, against verl, TRL and OpenRLHF."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import openrlhf_peer
import pytest
import torch
import trl_peer
import verl_peer
from numerics_batches import Batch, agree
from torch import Tensor

from rl_trainer.algorithms.advantages import batch_normalized_advantages, group_advantages
from rl_trainer.algorithms.reward_shaping import (
    kl_estimates,
    overlong_penalty,
    penalized_rewards,
    token_returns,
    token_rewards,
)


def ours(batch: Batch, estimator: str = "groupMean", **settings: object) -> Tensor:
    values, _ = group_advantages(batch.rewards.numpy(), batch.group_ids, estimator=estimator, **settings)
    return torch.from_numpy(values)


def on_tokens(advantages: Tensor, batch: Batch) -> Tensor:
    return advantages.unsqueeze(1) * batch.mask


def sampled(values: Tensor, batch: Batch) -> list[np.ndarray]:
    """Of each sequence the sampled tokens alone: holes and padding left out."""
    return [row[kept].numpy() for row, kept in zip(values, batch.mask != 0, strict=True)]


def in_place(parts: list[np.ndarray], batch: Batch) -> Tensor:
    """The inverse of `sampled`."""
    values = torch.zeros_like(batch.mask)
    values[batch.mask != 0] = torch.from_numpy(np.concatenate(parts))
    return values


# groups


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_grpo_with_the_standard_deviation_as_verl(batch: Batch, name: str) -> None:
    agree(on_tokens(ours(batch), batch), verl_peer.advantages(name, batch))


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_dr_grpo_as_verl(batch: Batch, name: str) -> None:
    theirs = verl_peer.advantages(name, batch, norm_adv_by_std_in_grpo=False)
    agree(on_tokens(ours(batch, normalize_by_std=False), batch), theirs)


def test_grpo_with_the_standard_deviation_as_trl_with_its_epsilon(batch: Batch) -> None:
    agree(ours(batch, epsilon=1e-4), trl_peer.scored(batch, scale_rewards="group")["advantages"])


def test_dr_grpo_as_trl(batch: Batch) -> None:
    agree(ours(batch, normalize_by_std=False), trl_peer.scored(batch, scale_rewards="none")["advantages"])


def test_grpo_with_the_standard_deviation_as_openrlhf_with_its_epsilon(batch: Batch) -> None:
    theirs = openrlhf_peer.advantages("group_norm", batch)
    agree(on_tokens(ours(batch, epsilon=1e-9), batch), theirs * batch.mask)


def test_dr_grpo_as_openrlhf(batch: Batch) -> None:
    theirs = openrlhf_peer.advantages("dr_grpo", batch)
    agree(on_tokens(ours(batch, normalize_by_std=False), batch), theirs * batch.mask)


@pytest.mark.parametrize("name", ["rloo", "rloo_vectorized"])
def test_rloo_as_verl(batch: Batch, name: str) -> None:
    theirs = verl_peer.advantages(name, batch)
    agree(on_tokens(ours(batch, "leaveOneOut", normalize_by_std=False), batch), theirs)


def test_rloo_as_trl(batch: Batch) -> None:
    agree(ours(batch, "leaveOneOut", normalize_by_std=False), trl_peer.rloo_advantages(batch, beta=0.0))


def test_rloo_as_openrlhf(batch: Batch) -> None:
    theirs = openrlhf_peer.advantages("rloo", batch)
    agree(on_tokens(ours(batch, "leaveOneOut", normalize_by_std=False), batch), theirs * batch.mask)


def test_maxrl_as_a_plain_loop(batch: Batch) -> None:
    """None of the three has it."""
    batch.rewards = batch.rewards.abs()
    expected = torch.zeros_like(batch.rewards)
    for row, group in enumerate(batch.group_ids):
        members = [float(batch.rewards[i]) for i, other in enumerate(batch.group_ids) if other == group]
        mean = sum(members) / len(members)
        expected[row] = (float(batch.rewards[row]) - mean) / mean
    agree(ours(batch, "maxRl", epsilon=0.0), expected)


# a reward per token


@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_reinforce_plus_plus_across_observation_tokens_as_verl(batch: Batch, gamma: float) -> None:
    """verl adds 1e-8 to the variance; ours, here without epsilon, nothing."""
    rewards = token_rewards(batch.rewards.numpy(), batch.lengths, None, 0.0)
    returns = token_returns(rewards, gamma)
    theirs, their_returns = verl_peer.reinforce_plus_plus(in_place(rewards, batch), batch.mask, gamma)
    agree(in_place(returns, batch), their_returns)
    agree(in_place(batch_normalized_advantages(returns, epsilon=0.0), batch), theirs)


@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_reinforce_plus_plus_as_openrlhf_with_its_biased_variance(batch: Batch, gamma: float) -> None:
    """OpenRLHF discounts over a hole as over tokens, so that the masks here have padding only."""
    batch.mask = (torch.arange(batch.mask.shape[1]) < batch.mask.sum(dim=1, keepdim=True)).double()
    returns = token_returns(token_rewards(batch.rewards.numpy(), batch.lengths, None, 0.0), gamma)
    tokens = sum(batch.lengths)
    mine = in_place(batch_normalized_advantages(returns, epsilon=0.0), batch) * math.sqrt(
        tokens / (tokens - 1)
    )
    agree(mine, openrlhf_peer.advantages("reinforce", batch, gamma=gamma) * batch.mask)


# what is added to rewards


def test_kl_in_token_rewards_as_openrlhf(batch: Batch) -> None:
    """The KL on every token and the reward on the last one sampled."""
    kl = kl_estimates(batch.old, batch.reference, "k1")
    mine = token_rewards(batch.rewards.numpy(), batch.lengths, sampled(torch.from_numpy(kl), batch), 0.1)
    theirs = openrlhf_peer.compute_reward(batch.rewards, 0.1, batch.old - batch.reference, batch.mask)
    agree(in_place(mine, batch), theirs * batch.mask)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimates_as_verl(batch: Batch, estimator: str) -> None:
    mine = torch.from_numpy(kl_estimates(batch.old, batch.reference, estimator))
    agree(mine, verl_peer.kl_penalty(batch.old, batch.reference, estimator))


def test_kl_in_token_rewards_as_verl(batch: Batch) -> None:
    scores = in_place(token_rewards(batch.rewards.numpy(), batch.lengths, None, 0.0), batch)
    kl = torch.from_numpy(kl_estimates(batch.old, batch.reference, "k1"))
    mine = token_rewards(batch.rewards.numpy(), batch.lengths, sampled(kl, batch), 0.1)
    theirs = verl_peer.compute_rewards(scores, batch.old, batch.reference, 0.1)
    agree(in_place(mine, batch), theirs * batch.mask)


def test_kl_in_rewards_of_whole_answers_as_trl(batch: Batch) -> None:
    """TRL's RLOO counts every token of a completion, so that there are no holes here."""
    batch.mask = torch.ones_like(batch.mask)
    kl = torch.from_numpy(kl_estimates(batch.old, batch.reference, "k1"))
    shaped = penalized_rewards(batch.rewards.numpy(), sampled(kl, batch), 0.05)
    mine = ours(
        SimpleNamespace(rewards=torch.from_numpy(shaped), group_ids=batch.group_ids),
        "leaveOneOut",
        normalize_by_std=False,
    )
    agree(mine, trl_peer.rloo_advantages(batch, beta=0.05))


@pytest.mark.parametrize(("limit", "buffer", "penalty"), [(100, 0.2, 1.0), (64, 0.5, 0.3), (10, 1.0, 2.0)])
def test_overlong_penalty_as_openrlhf_and_verl(limit: int, buffer: float, penalty: float) -> None:
    lengths = list(range(1, limit + 1))
    mine = torch.from_numpy(overlong_penalty(lengths, limit, buffer, penalty))
    agree(mine, openrlhf_peer.overlong_penalties(lengths, limit, int(buffer * limit), penalty))
    agree(mine, verl_peer.overlong_penalties(lengths, limit, int(buffer * limit), penalty))
