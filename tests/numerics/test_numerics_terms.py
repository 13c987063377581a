"""What stands beside the objective: importance weights, KL, entropy; and flat tokens. Against verl, TRL, OpenRLHF."""

from __future__ import annotations

import openrlhf_peer
import pytest
import torch
import trl_peer
import verl_peer
from numerics_batches import Batch, same_function
from numerics_loss import AGGREGATIONS, HORIZON, ours
from torch import Tensor

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.importance import ImportanceConfig
from rl_trainer.algorithms.losses import PolicyLossConfig, policy_loss


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
