"""Weights between sampler and trainer, at each level, truncated and masked, against verl, TRL and OpenRLHF."""

from __future__ import annotations

import openrlhf_peer
import pytest
import torch
import trl_peer
import verl_peer
from numerics_batches import Batch, agree, with_gradient
from torch import Tensor

from rl_trainer.algorithms.importance import (
    ImportanceConfig,
    importance_ratios,
    importance_weights,
    mismatch_metrics,
    outside_bounds,
)

LOW, HIGH = 0.7, 1.5
WIDE = (0.01, 100.0)  # for products over a sequence


def ours(batch: Batch, kind: str, level: str, low: float | None = LOW, high: float = HIGH) -> Tensor:
    config = ImportanceConfig(kind=kind, level=level, low=low, high=high)
    return importance_weights(batch.old, batch.sampler, batch.mask != 0, config) * batch.mask


def differences(batch: Batch) -> Tensor:
    return batch.old - batch.sampler


def openrlhf_weights(batch: Batch, **settings: object) -> Tensor:
    """What OpenRLHF multiplies a token's loss with: its gradient where the policies are equal and A is 1."""
    _, gradient = with_gradient(
        lambda log_probs: openrlhf_peer.policy_loss(
            log_probs,
            batch,
            advantages=torch.ones_like(batch.mask),
            is_correction_threshold=[LOW, HIGH],
            **settings,
        ),
        batch.old,
    )
    return -gradient * batch.mask.sum()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_weights_as_verl(batch: Batch, level: str) -> None:
    theirs = verl_peer.importance_weights(differences(batch), batch.mask, level, HIGH)
    agree(ours(batch, "truncate", level, low=None), theirs)


@pytest.mark.parametrize(("level", "bounds"), [("token", (LOW, HIGH)), ("sequence", WIDE)])
def test_masked_weights_as_verl(batch: Batch, level: str, bounds: tuple[float, float]) -> None:
    low, high = bounds
    theirs = verl_peer.importance_weights(differences(batch), batch.mask, level, f"{low}_{high}")
    assert theirs.any()
    agree(ours(batch, "mask", level, low, high), theirs)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
@pytest.mark.parametrize("low", [None, LOW])
def test_weights_as_trl(batch: Batch, kind: str, level: str, low: float | None) -> None:
    theirs = trl_peer.scored(batch, importance_mode=f"{level}_{kind}", clip_min=low, clip_max=HIGH)
    agree(ours(batch, kind, level, low), theirs["importance_sampling_ratio"] * batch.mask)


def test_ratios_far_apart_are_limited_as_verl(batch: Batch) -> None:
    far = 15.0 * differences(batch)
    theirs = verl_peer.importance_weights(far, batch.mask, "token", 1e12)
    agree(importance_ratios(far, torch.zeros_like(far), batch.mask != 0, "token") * batch.mask, theirs)


def test_sequences_left_out_by_the_geometric_mean_as_verl_with_its_bounds_inverted(batch: Batch) -> None:
    theirs = verl_peer.rejection_mask(differences(batch), batch.mask, "seq_mean_k1", f"{1 / HIGH}_{1 / LOW}")
    agree(ours(batch, "mask", "geometric"), theirs)


def test_sequences_left_out_by_the_geometric_mean_as_openrlhf_with_our_token_weights(batch: Batch) -> None:
    """OpenRLHF's survivors keep their token's ratio; ours have weight 1."""
    theirs = openrlhf_weights(batch, is_correction_level="seq")
    agree(ours(batch, "mask", "geometric") * differences(batch).exp(), theirs)


@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_token_weights_as_openrlhf(batch: Batch, kind: str) -> None:
    mode = {"truncate": "clip", "mask": "mask"}[kind]
    agree(
        ours(batch, kind, "token"),
        openrlhf_weights(batch, is_correction_level="token", is_correction_mode=mode),
    )


@pytest.mark.parametrize("kind", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_every_kind_and_level_as_a_plain_loop(batch: Batch, kind: str, level: str) -> None:
    expected = torch.zeros_like(batch.mask)
    for row in range(len(batch.mask)):
        tokens = [t for t in range(batch.mask.shape[1]) if batch.mask[row, t]]
        logs = [float(batch.old[row, t] - batch.sampler[row, t]) for t in tokens]
        for t, log in zip(tokens, logs, strict=True):
            x = {"token": log, "sequence": sum(logs), "geometric": sum(logs) / len(logs)}[level]
            ratio = torch.tensor(x, dtype=torch.float64).exp().item()
            if kind == "truncate":
                weight = min(max(ratio, LOW), HIGH)
            else:
                weight = (1.0 if level == "geometric" else ratio) if LOW <= ratio <= HIGH else 0.0
            expected[row, t] = weight
    agree(ours(batch, kind, level), expected)


def test_measures_of_the_mismatch_as_verl(batch: Batch) -> None:
    sums = mismatch_metrics(batch.old * batch.mask, batch.sampler * batch.mask, batch.mask != 0)
    tokens = sums["mismatch_tokens"]
    kl = torch.tensor(verl_peer.offpolicy_metrics(batch)["k3_kl"])
    agree(sums["mismatch_k3"] / tokens, kl)
    unbounded = verl_peer.importance_metrics(differences(batch), batch.mask, 1e12)
    agree(sums["mismatch_ratio_sum"] / tokens, torch.tensor(unbounded["rollout_is_mean"]))


def test_the_fraction_left_out_as_verl(batch: Batch) -> None:
    config = ImportanceConfig(kind="mask", level="token", low=LOW, high=HIGH)
    ratios = importance_ratios(batch.old, batch.sampler, batch.mask != 0, "token")
    left_out = (outside_bounds(ratios, config) * batch.mask).sum() / batch.mask.sum()
    theirs = verl_peer.importance_metrics(differences(batch), batch.mask, f"{LOW}_{HIGH}")
    agree(left_out, torch.tensor(theirs["rollout_is_oob_ratio"]))
