"""What a person reads of the losses: means over what was measured, and the bound of the mean ratio."""

from __future__ import annotations

import pytest

from rl_trainer.algorithms.loss_metrics import (
    empty_metrics,
    merge_metrics,
    metric_means,
    passes_ratio_bound,
)

NOTHING = {name: value.item() for name, value in empty_metrics().items()}


def test_means_are_over_the_tokens_that_were_measured() -> None:
    """Each sum over its own count: 4 trained tokens, 5 with KL, 8 with entropy, 10 with the sampler's log-probs."""
    sums = {"loss": -0.5, "policy_loss": -0.75, "tokens": 4.0, "ratio_max": 3.0}
    sums |= {"clip_low": 1.0, "clip_high": 2.0, "ratio": 6.0, "update_k3": 0.5}
    sums |= {"kl_tokens": 5.0, "kl": 1.0, "entropy_tokens": 8.0, "entropy": 2.0, "mismatch_tokens": 10.0}
    sums |= {
        "mismatch_k3": 1.0,
        "mismatch_exp_abs": 12.0,
        "mismatch_bounded": 11.5,
        "mismatch_ratio_sum": 11.0,
    }
    assert metric_means(merge_metrics([sums | {"importance": 9.0, "importance_clipped": 3.0}])) == {
        "loss": -0.5,
        "policy_loss": -0.75,
        "tokens": 4.0,
        "ratio_max": 3.0,
        "clip_fraction": 0.75,
        "clip_low_fraction": 0.25,
        "clip_high_fraction": 0.5,
        "ratio_mean": 1.5,
        "update_kl": 0.125,
        "kl": 0.2,
        "entropy": 0.25,
        "mismatch_kl": 0.1,
        "mismatch_ratio": 1.2,
        "mismatch_bounded": 1.15,
        "sampler_ratio_mean": 1.1,
        "importance_mean": 0.9,
        "importance_clipped_fraction": 0.3,
    }


@pytest.mark.parametrize(("bound", "passed"), [(None, False), (1.6, False), (1.5, False), (1.4, True)])
def test_ratio_bound_is_on_the_mean_over_all_micro_batches(bound: float | None, passed: bool) -> None:
    parts = [
        {**NOTHING, "ratio": 1.0, "tokens": 1.0, "ratio_max": 1.0},
        {**NOTHING, "ratio": 5.0, "tokens": 3.0, "ratio_max": 4.0},
    ]
    merged = merge_metrics(parts)
    assert merged["ratio_max"] == 4.0
    assert passes_ratio_bound(merged, bound) is passed


def test_one_token_passes_a_bound_and_an_empty_mini_batch_none() -> None:
    assert passes_ratio_bound({"ratio": 2.0, "tokens": 1.0}, 1.5)
    assert not passes_ratio_bound(merge_metrics([]), 0.0)
