"""Objectives and aggregations, value and gradient of the whole policy loss, against verl, TRL and OpenRLHF."""

from __future__ import annotations

from typing import Any

import openrlhf_peer
import pytest
import torch
import trl_peer
import verl_peer
from numerics_batches import Batch, agree, same_function, with_gradient
from torch import Tensor

from rl_trainer.learner.importance import ImportanceConfig
from rl_trainer.learner.losses import LossDenominators, PolicyLossConfig, policy_loss

HORIZON = 50
# ours, verl's, and the loss_type of TRL with that aggregation
AGGREGATIONS = [
    ("tokenMean", "token-mean"),
    ("sequenceMean", "seq-mean-token-mean"),
    ("sequenceSum", "seq-mean-token-sum"),
    ("constant", "seq-mean-token-sum-norm"),
]
TRL_AGGREGATIONS = [
    ("tokenMean", "dapo"),
    ("tokenMean", "bnpo"),
    ("sequenceMean", "grpo"),
    ("constant", "dr_grpo"),
]
CLIPS = [(0.2, 0.2), (0.2, 0.28), (0.05, 0.6)]
OFF = ImportanceConfig(kind="off")


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
    if not mask.any():
        return
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


@pytest.mark.parametrize("objective", ["ppoClip", "gspo", "cispo", "reinforce"])
@pytest.mark.parametrize(("level", "high"), [("token", 1.3), ("sequence", 100.0)])
def test_decoupled_objectives_as_verl(batch: Batch, objective: str, level: str, high: float) -> None:
    """The weight between l_old and l_mu times the objective, whose ratio is between l and l_old."""
    name = {"ppoClip": "vanilla", "reinforce": "gpg"}.get(objective, objective)
    weights = verl_peer.importance_weights(batch.old - batch.sampler, batch.mask, level, high)
    config = ImportanceConfig(kind="truncate", level=level, high=high)
    same_function(
        lambda point: ours(point, batch, objective, importance=config),
        lambda point: verl_peer.policy_loss(name, point, batch, weights=weights),
        batch.log_probs,
    )


@pytest.mark.parametrize("kind", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_decoupled_ppo_as_trl(batch: Batch, kind: str, level: str) -> None:
    high = {"token": 1.3, "sequence": 30.0}[level]
    ratio = trl_peer.scored(batch, importance_mode=f"{level}_{kind}", clip_max=high)[
        "importance_sampling_ratio"
    ]
    config = ImportanceConfig(kind=kind, level=level, high=high)
    same_function(
        lambda point: ours(point, batch, importance=config),
        lambda point: trl_peer.grpo_loss(point, batch, loss_type="dapo", importance_ratio=ratio),
        batch.log_probs,
    )


@pytest.mark.parametrize(("kind", "mode"), [("truncate", "clip"), ("mask", "mask")])
def test_decoupled_ppo_as_openrlhf(batch: Batch, kind: str, mode: str) -> None:
    same_function(
        lambda point: ours(point, batch, importance=ImportanceConfig(kind=kind, low=0.6, high=1.4)),
        lambda point: openrlhf_peer.policy_loss(
            point,
            batch,
            is_correction_level="token",
            is_correction_mode=mode,
            is_correction_threshold=[0.6, 1.4],
        ),
        batch.log_probs,
    )


@pytest.mark.parametrize("objective", ["ppoClip", "gspo", "cispo", "dppo", "reinforce"])
@pytest.mark.parametrize("aggregation", ["tokenMean", "sequenceMean", "sequenceSum", "constant"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_flat_tokens_as_padded_rows(batch: Batch, objective: str, aggregation: str, level: str) -> None:
    """Packed sequences without padding: so what holds above for rows holds for them."""
    kept = batch.mask != 0
    rows = torch.arange(len(batch.mask)).unsqueeze(1).expand_as(batch.mask)
    config = PolicyLossConfig(
        objective=objective,
        aggregation=aggregation,
        kl_coefficient=0.1,
        importance=ImportanceConfig(kind="truncate", level=level, low=0.5, high=3.0),
    )

    def flat(point: Tensor) -> Tensor:
        return policy_loss(
            point[kept],
            batch.token_advantages[kept],
            torch.ones_like(point[kept]),
            LossDenominators.from_lengths(batch.lengths, HORIZON),
            config,
            old_log_probs=batch.old[kept],
            sampler_log_probs=batch.sampler[kept],
            reference_log_probs=batch.reference[kept],
            sequence_ids=rows[kept],
        ).loss

    same_function(
        flat,
        lambda point: ours(
            point,
            batch,
            objective,
            aggregation=aggregation,
            kl_coefficient=0.1,
            importance=config.importance,
        ),
        batch.log_probs,
    )


def test_interpolated_proximal_policy_as_a_plain_loop(batch: Batch) -> None:
    """AReaL's: none of the three has it. Between l_mu and l by the age of the token, and no gradient through it."""
    staleness = torch.arange(batch.mask.numel()).reshape(batch.mask.shape) % 4
    proximal = torch.zeros_like(batch.mask)
    for row in range(batch.mask.shape[0]):
        for t in range(batch.mask.shape[1]):
            policy, sampler = float(batch.log_probs[row, t]), float(batch.sampler[row, t])
            made_by, trained_from, making = 10 - int(staleness[row, t]), 10, 11  # weight versions
            share = (trained_from - made_by) / (making - made_by)
            proximal[row, t] = sampler + share * (policy - sampler)
    config = ImportanceConfig(kind="truncate", high=1.3)
    weights = verl_peer.importance_weights(proximal - batch.sampler, batch.mask, "token", 1.3)

    def interpolated(point: Tensor) -> Tensor:
        return policy_loss(
            point,
            batch.token_advantages,
            batch.mask,
            LossDenominators.from_lengths(batch.lengths),
            PolicyLossConfig(proximal="interpolated", importance=config),
            sampler_log_probs=batch.sampler,
            staleness=staleness,
        ).loss

    batch.old = proximal
    same_function(
        interpolated,
        lambda point: verl_peer.policy_loss("vanilla", point, batch, weights=weights),
        batch.log_probs,
    )


@pytest.mark.parametrize(("aggregation", "theirs"), AGGREGATIONS)
def test_entropy_bonus_as_verl(batch: Batch, aggregation: str, theirs: str) -> None:
    """The bonus is aggregated as the loss is; its gradient with respect to the entropies."""
    entropy = batch.values.abs()
    same_function(
        lambda point: ours(
            batch.log_probs, batch, entropy=point, entropy_coefficient=0.1, aggregation=aggregation
        ),
        lambda point: (
            verl_peer.policy_loss("vanilla", batch.log_probs, batch, aggregation=theirs, horizon=HORIZON)
            - 0.1 * verl_peer.aggregated(point, batch, theirs, HORIZON)
        ),
        entropy,
    )


def test_entropy_bonus_as_trl_which_takes_the_token_mean(batch: Batch) -> None:
    entropy = batch.values.abs()
    same_function(
        lambda point: ours(batch.log_probs, batch, entropy=point, entropy_coefficient=0.1),
        lambda point: trl_peer.grpo_loss(
            batch.log_probs, batch, entropies=point, loss_type="dapo", entropy_coef=0.1
        ),
        entropy,
    )


def test_kl_term_with_its_own_gradient_as_trl_without_its_correction(batch: Batch) -> None:
    same_function(
        lambda point: ours(point, batch, kl_coefficient=0.3, kl_straight_through=False),
        lambda point: trl_peer.grpo_loss(
            point, batch, loss_type="dapo", beta=0.3, use_bias_correction_kl=False
        ),
        batch.log_probs,
    )


def test_kl_term_weighted_to_the_policy_as_trl_with_its_correction(batch: Batch) -> None:
    """k3 times pi / mu, with gradient through both, is TRL's; it has the value and gradient of ours: sg(w) times k3+."""
    batch.sampler = batch.old
    unbounded = ImportanceConfig(kind="truncate", high=1e9)
    same_function(
        lambda point: ours(point, batch, kl_coefficient=0.3, importance=unbounded),
        lambda point: trl_peer.grpo_loss(
            point, batch, loss_type="dapo", beta=0.3, use_bias_correction_kl=True
        ),
        batch.log_probs,
    )


def test_kl_term_as_verl_which_never_weighs_it(batch: Batch) -> None:
    same_function(
        lambda point: ours(point, batch, kl_coefficient=0.3),
        lambda point: (
            verl_peer.policy_loss("vanilla", point, batch)
            + 0.3
            * verl_peer.aggregated(
                verl_peer.kl_penalty(point, batch.reference, "k3+"), batch, "token-mean", HORIZON
            )
        ),
        batch.log_probs,
    )
