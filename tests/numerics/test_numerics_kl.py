"""KL estimates against a reference, value and gradient, as a loss and in the reward, against verl and OpenRLHF."""

from __future__ import annotations

import openrlhf_peer
import pytest
import torch
import verl_peer
from numerics_batches import Batch, agree, same_function, with_gradient
from torch import Tensor

from rl_trainer.algorithms.losses import kl_penalty

ESTIMATORS = ["k1", "k2", "k3"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("straight_through", [False, True])
def test_values_and_gradients_as_verl(batch: Batch, estimator: str, straight_through: bool) -> None:
    """verl's name ends with + where the gradient is that of k2, whatever the value."""
    theirs = f"{estimator}+" if straight_through else estimator
    same_function(
        lambda point: weighted(kl_penalty(point, batch.reference, estimator, straight_through), batch),
        lambda point: weighted(verl_peer.kl_penalty(point, batch.reference, theirs), batch),
        batch.log_probs,
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("straight_through", [False, True])
def test_values_and_gradients_as_openrlhf(batch: Batch, estimator: str, straight_through: bool) -> None:
    """OpenRLHF computes the KL in fp32, where exp(d) - 1 - d of a small d keeps few digits: values to 1e-6 absolute.

    These log-probs and their differences are fp32 without rounding.
    """
    point, reference = rounded(batch.log_probs), rounded(batch.reference)

    def ours(log_probs: Tensor) -> Tensor:
        return kl_penalty(log_probs, reference, estimator, straight_through)

    def theirs(log_probs: Tensor) -> Tensor:
        return openrlhf_peer.compute_approx_kl(
            log_probs, reference, kl_estimator=estimator, unbiased_gradient=straight_through
        ).double()

    agree(ours(point), theirs(point), scale=1.0)
    _, gradient = with_gradient(lambda log_probs: weighted(ours(log_probs), batch), point)
    _, their_gradient = with_gradient(lambda log_probs: weighted(theirs(log_probs), batch), point)
    agree(gradient, their_gradient)


@pytest.mark.parametrize("straight_through", [False, True])
def test_k3_beyond_their_limit_of_ten_keeps_growing(straight_through: bool) -> None:
    """verl and OpenRLHF limit the estimate to 10; ours limits the log-ratio to 20, and below 10 all agree."""
    policy, reference = torch.tensor([-6.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    mine = kl_penalty(policy, reference, "k3", straight_through)
    agree(mine, torch.tensor([5.0], dtype=torch.float64).exp() - 6.0)
    assert verl_peer.kl_penalty(policy, reference, "k3").item() == 10.0
    assert openrlhf_peer.compute_approx_kl(policy, reference, kl_estimator="k3").item() == 10.0


def weighted(estimates: Tensor, batch: Batch) -> Tensor:
    """A scalar that every estimate goes into with a weight of its own."""
    return (estimates * batch.values * batch.mask).sum()


def rounded(values: Tensor) -> Tensor:
    return (values * 4096).round() / 4096
