"""GAE, whitening and the critic's loss, against verl and OpenRLHF."""

from __future__ import annotations

import openrlhf_peer
import pytest
import torch
import verl_peer
from numerics_batches import Batch, agree, same_function
from numerics_loss import AGGREGATIONS, HORIZON

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.gae import gae, whiten
from rl_trainer.algorithms.value_loss import clipped_value_loss

DISCOUNTS = [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)]


@pytest.mark.parametrize(("gamma", "lam"), DISCOUNTS)
def test_gae_across_observation_tokens_as_verl(batch: Batch, gamma: float, lam: float) -> None:
    """The masks have holes: what an environment said. verl's advantages are whitened, its returns are not."""
    rewards = batch.token_advantages
    advantages, returns = gae(rewards, batch.values, batch.mask, gamma=gamma, lam=lam)
    theirs, their_returns = verl_peer.gae(rewards, batch.values, batch.mask, gamma, lam)
    agree(returns, their_returns * batch.mask)
    agree(whiten(advantages, batch.mask), theirs * batch.mask)


@pytest.mark.parametrize(("gamma", "lam"), DISCOUNTS)
def test_gae_without_observation_tokens_as_openrlhf(batch: Batch, gamma: float, lam: float) -> None:
    """OpenRLHF discounts over a hole as over tokens, so that the masks here have padding only."""
    lengths = batch.mask.sum(dim=1, keepdim=True)
    mask = (torch.arange(batch.mask.shape[1]) < lengths).double()
    advantages, returns = gae(batch.token_advantages, batch.values, mask, gamma=gamma, lam=lam)
    theirs, their_returns = openrlhf_peer.gae(batch.token_advantages, batch.values, mask, gamma, lam)
    agree(advantages, theirs * mask)
    agree(returns, their_returns * mask)


@pytest.mark.parametrize(("gamma", "lam"), DISCOUNTS)
@pytest.mark.parametrize("cut_off", [False, True])
def test_gae_as_a_plain_loop(batch: Batch, gamma: float, lam: float, cut_off: bool) -> None:
    last_values = batch.returns[:, 0] if cut_off else None
    advantages, returns = gae(
        batch.token_advantages, batch.values, batch.mask, gamma=gamma, lam=lam, last_values=last_values
    )
    expected, expected_returns = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
    for row in range(len(batch.mask)):
        steps = [t for t in range(batch.mask.shape[1]) if batch.mask[row, t]]
        deltas = []
        for place, t in enumerate(steps):
            after = 0.0 if last_values is None else float(last_values[row])
            if place + 1 < len(steps):
                after = float(batch.values[row, steps[place + 1]])
            deltas.append(float(batch.token_advantages[row, t]) + gamma * after - float(batch.values[row, t]))
        for place, t in enumerate(steps):
            ahead = deltas[place:]
            expected[row, t] = sum((gamma * lam) ** k * delta for k, delta in enumerate(ahead))
            expected_returns[row, t] = expected[row, t] + batch.values[row, t]
    agree(advantages, expected)
    agree(returns, expected_returns)


def test_whitening_as_verl(batch: Batch) -> None:
    agree(whiten(batch.values, batch.mask), verl_peer.masked_whiten(batch.values, batch.mask) * batch.mask)


@pytest.mark.parametrize(("aggregation", "theirs"), AGGREGATIONS)
def test_clipped_value_loss_as_verl(batch: Batch, aggregation: str, theirs: str) -> None:
    same_function(
        lambda values: our_loss(values, batch, 0.2, aggregation),
        lambda values: verl_peer.value_loss(values, batch, 0.2, theirs, HORIZON),
        batch.values,
    )


@pytest.mark.parametrize(("aggregation", "token_level"), [("tokenMean", True), ("sequenceMean", False)])
@pytest.mark.parametrize("clip", [0.2, None])
def test_value_loss_as_openrlhf(
    batch: Batch, aggregation: str, token_level: bool, clip: float | None
) -> None:
    theirs = openrlhf_peer.ValueLoss(clip_eps=clip, token_level_loss=token_level)
    same_function(
        lambda values: our_loss(values, batch, clip, aggregation),
        lambda values: theirs(values, batch.old_values, batch.returns, batch.mask),
        batch.values,
    )


def our_loss(values: torch.Tensor, batch: Batch, clip: float | None, aggregation: str) -> torch.Tensor:
    denominators = LossDenominators.from_lengths(batch.lengths, HORIZON)
    return clipped_value_loss(
        values, batch.old_values, batch.returns, batch.mask, denominators, clip=clip, aggregation=aggregation
    ).loss
