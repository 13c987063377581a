"""Objectives and aggregations, value and gradient of the policy loss, against verl, TRL and OpenRLHF."""

from __future__ import annotations

import openrlhf_peer
import pytest
import torch
import trl_peer
import verl_peer
from numerics_batches import Batch, agree, same_function, with_gradient
from numerics_loss import AGGREGATIONS, HORIZON, OFF, ours
from torch import Tensor

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.losses import PolicyLossConfig, policy_loss

TRL_AGGREGATIONS = [
    ("tokenMean", "dapo"),
    ("tokenMean", "bnpo"),
    ("sequenceMean", "grpo"),
    ("constant", "dr_grpo"),
]
CLIPS = [(0.2, 0.2), (0.2, 0.28), (0.05, 0.6)]


def per_token(batch: Batch) -> Tensor:
    """An advantage per sequence, as a peer wants it: one for each token."""
    return batch.advantages.unsqueeze(1).expand_as(batch.mask)


@pytest.mark.parametrize(("aggregation", "theirs"), AGGREGATIONS)
def test_ppo_clip_and_aggregations_as_verl(batch: Batch, aggregation: str, theirs: str) -> None:
    same_function(
        lambda point: ours(point, batch, aggregation=aggregation),
        lambda point: verl_peer.policy_loss("vanilla", point, batch, aggregation=theirs, horizon=HORIZON),
        batch.log_probs,
    )


@pytest.mark.parametrize(("aggregation", "theirs"), AGGREGATIONS)
def test_fully_masked_sequences_leave_the_count_as_verl(batch: Batch, aggregation: str, theirs: str) -> None:
    mask = batch.mask.clone()
    mask[0] = 0.0
    same_function(
        lambda point: ours(point, batch, aggregation=aggregation, mask=mask),
        lambda point: verl_peer.policy_loss(
            "vanilla", point, batch, aggregation=theirs, horizon=HORIZON, mask=mask
        ),
        batch.log_probs,
    )


@pytest.mark.parametrize(("low", "high"), CLIPS)
def test_clip_higher_as_verl(batch: Batch, low: float, high: float) -> None:
    same_function(
        lambda point: ours(point, batch, clip_low=low, clip_high=high),
        lambda point: verl_peer.policy_loss("vanilla", point, batch, low=low, high=high),
        batch.log_probs,
    )


def test_log_ratios_far_apart_are_limited_as_verl_and_openrlhf(batch: Batch) -> None:
    """exp(20) at most: the negative advantages of tokens whose probability exploded."""
    point = batch.old + 60.0 * (batch.log_probs - batch.old)
    same_function(
        lambda log_probs: ours(log_probs, batch),
        lambda log_probs: verl_peer.policy_loss("vanilla", log_probs, batch),
        point,
    )
    same_function(
        lambda log_probs: ours(log_probs, batch),
        lambda log_probs: openrlhf_peer.policy_loss(log_probs, batch),
        point,
    )


@pytest.mark.parametrize("bound", [1.2, 1.5, 3.0])
def test_dual_clip_as_verl_and_openrlhf(batch: Batch, bound: float) -> None:
    same_function(
        lambda point: ours(point, batch, dual_clip=bound),
        lambda point: verl_peer.policy_loss("vanilla", point, batch, dual_clip=bound),
        batch.log_probs,
    )
    same_function(
        lambda point: ours(point, batch, dual_clip=bound),
        lambda point: openrlhf_peer.policy_loss(point, batch, dual_clip=bound),
        batch.log_probs,
    )


@pytest.mark.parametrize("bound", [1.5, 3.0])
def test_dual_clip_as_trl_with_a_delta_above_the_upper_clip(batch: Batch, bound: float) -> None:
    same_function(
        lambda point: ours(point, batch, dual_clip=bound),
        lambda point: trl_peer.grpo_loss(point, batch, loss_type="dapo", delta=bound),
        batch.log_probs,
    )


@pytest.mark.parametrize(("low", "high"), CLIPS)
@pytest.mark.parametrize(("aggregation", "loss_type"), TRL_AGGREGATIONS)
def test_ppo_clip_and_aggregations_as_trl(
    batch: Batch, aggregation: str, loss_type: str, low: float, high: float
) -> None:
    same_function(
        lambda point: ours(
            point, batch, advantages=batch.advantages, aggregation=aggregation, clip_low=low, clip_high=high
        ),
        lambda point: trl_peer.grpo_loss(
            point,
            batch,
            advantages=batch.advantages,
            loss_type=loss_type,
            epsilon=low,
            epsilon_high=high,
            max_length=HORIZON,
        ),
        batch.log_probs,
    )


@pytest.mark.parametrize(("low", "high"), CLIPS)
@pytest.mark.parametrize(("aggregation", "token_level"), [("tokenMean", True), ("sequenceMean", False)])
def test_ppo_clip_and_aggregations_as_openrlhf(
    batch: Batch, aggregation: str, token_level: bool, low: float, high: float
) -> None:
    same_function(
        lambda point: ours(point, batch, aggregation=aggregation, clip_low=low, clip_high=high),
        lambda point: openrlhf_peer.policy_loss(
            point, batch, token_level_loss=token_level, clip_eps_low=low, clip_eps_high=high
        ),
        batch.log_probs,
    )


@pytest.mark.parametrize(("low", "high"), [(0.03, 0.04), (0.2, 0.28), (3e-4, 4e-4)])
@pytest.mark.parametrize(("aggregation", "theirs"), AGGREGATIONS)
def test_gspo_as_verl(batch: Batch, aggregation: str, theirs: str, low: float, high: float) -> None:
    same_function(
        lambda point: ours(point, batch, "gspo", aggregation=aggregation, clip_low=low, clip_high=high),
        lambda point: verl_peer.policy_loss(
            "gspo", point, batch, aggregation=theirs, horizon=HORIZON, low=low, high=high
        ),
        batch.log_probs,
    )


@pytest.mark.parametrize(("low", "high"), [(0.03, 0.04), (0.2, 0.28)])
def test_gspo_as_trl_and_openrlhf(batch: Batch, low: float, high: float) -> None:
    """Theirs has the ratio of the sequence in it, not the token form: the same where a sequence has one advantage."""
    mine = {"advantages": batch.advantages, "aggregation": "sequenceMean", "clip_low": low, "clip_high": high}
    same_function(
        lambda point: ours(point, batch, "gspo", **mine),
        lambda point: trl_peer.grpo_loss(
            point,
            batch,
            advantages=batch.advantages,
            loss_type="grpo",
            importance_sampling_level="sequence",
            epsilon=low,
            epsilon_high=high,
        ),
        batch.log_probs,
    )
    same_function(
        lambda point: ours(point, batch, "gspo", **mine),
        lambda point: openrlhf_peer.policy_loss(
            point,
            batch,
            advantages=per_token(batch),
            policy_loss_type="gspo",
            clip_eps_low=low,
            clip_eps_high=high,
        ),
        batch.log_probs,
    )


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (1.0, 4.0), (0.9, 0.1)])
def test_cispo_with_both_sides_as_verl(batch: Batch, low: float, high: float) -> None:
    same_function(
        lambda point: ours(point, batch, "cispo", clip_low=low, clip_high=high),
        lambda point: verl_peer.policy_loss("cispo", point, batch, low=low, high=high),
        batch.log_probs,
    )


@pytest.mark.parametrize("cap", [1.1, 1.5, 5.0])
def test_cispo_without_lower_side_as_trl_whose_bound_is_the_ratio_itself(batch: Batch, cap: float) -> None:
    same_function(
        lambda point: ours(point, batch, "cispo", clip_low=1.0, clip_high=cap - 1.0),
        lambda point: trl_peer.grpo_loss(point, batch, loss_type="cispo", epsilon_high=cap),
        batch.log_probs,
    )


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.1), (0.2, 0.2)])
def test_gradient_of_dppo_as_verl(batch: Batch, low: float, high: float) -> None:
    """verl's value is another (its ratio is detached, times the log-prob), and its behaviour policy is called old."""
    batch.old = batch.sampler
    _, gradient = with_gradient(
        lambda point: ours(point, batch, "dppo", clip_low=low, clip_high=high), batch.log_probs
    )
    _, theirs = with_gradient(
        lambda point: verl_peer.policy_loss("dppo_tv", point, batch, low=low, high=high), batch.log_probs
    )
    agree(gradient, theirs)


@pytest.mark.parametrize(("aggregation", "theirs"), AGGREGATIONS)
def test_reinforce_as_verl(batch: Batch, aggregation: str, theirs: str) -> None:
    same_function(
        lambda point: ours(point, batch, "reinforce", aggregation=aggregation),
        lambda point: verl_peer.policy_loss("gpg", point, batch, aggregation=theirs, horizon=HORIZON),
        batch.log_probs,
    )


def test_gradient_of_reinforce_over_whole_answers_as_rloo_of_trl_before_an_update(batch: Batch) -> None:
    """TRL's loss has the clipped ratio of the whole answer: 1 before the first update."""
    _, gradient = with_gradient(
        lambda point: ours(point, batch, "reinforce", advantages=batch.advantages, aggregation="sequenceSum"),
        batch.old,
    )
    _, theirs = with_gradient(lambda point: trl_peer.rloo_loss(point, batch), batch.old)
    agree(gradient, theirs)


@pytest.mark.parametrize(("aggregation", "theirs"), AGGREGATIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_of_a_batch_add_up_to_what_ranks_average_with_verl(
    batch: Batch, aggregation: str, theirs: str, ranks: int
) -> None:
    """verl is told the counts of the whole batch, and multiplies by the ranks that the gradient is averaged over."""
    whole = LossDenominators.from_lengths(batch.lengths, HORIZON)
    counts = {"dp_size": ranks, "batch_num_tokens": whole.tokens, "global_batch_size": whole.sequences}
    counts["loss_scale_factor"] = HORIZON
    parts = torch.arange(len(batch.mask)) % ranks
    config = PolicyLossConfig(aggregation=aggregation, importance=OFF)

    def added(point: Tensor) -> Tensor:
        return sum(
            policy_loss(
                point[parts == rank],
                batch.token_advantages[parts == rank],
                batch.mask[parts == rank],
                whole,
                config,
                old_log_probs=batch.old[parts == rank],
            ).loss
            for rank in range(ranks)
        )

    def averaged(point: Tensor) -> Tensor:
        losses = []
        for rank in range(ranks):
            rows = (parts == rank).double().unsqueeze(1) * batch.mask
            losses.append(
                verl_peer.policy_loss("vanilla", point, batch, aggregation=theirs, mask=rows, counts=counts)
            )
        return sum(losses) / ranks

    same_function(added, averaged, batch.log_probs)
