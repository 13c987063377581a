"""Metrics of the losses as sums: micro-batches and ranks reduce by addition (a few by maximum)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Reduced by addition.
SUM_METRICS = (
    "loss",  # already divided by the global denominator: the sum over micro-batches and ranks is the loss
    "policy_loss",  # the same without the KL and entropy terms
    "tokens",  # trained tokens
    "clip_low",  # tokens whose loss takes the lower clip (A < 0, ratio < 1 - low)
    "clip_high",  # tokens whose loss takes the upper clip (A > 0, ratio > 1 + high)
    "ratio",  # pi / pi_old
    "update_k3",  # k3 estimate of KL(pi_old || pi): how far this batch's updates have gone
    "kl_tokens",
    "kl",  # the chosen estimator's value of KL(pi || reference)
    "entropy_tokens",
    "entropy",
    "mismatch_tokens",
    "mismatch_k3",  # k3 estimate of KL(mu || pi_old): sampler against trainer, staleness included
    "mismatch_exp_abs",  # exp|l_old - l_mu|: 1 when sampler and trainer agree
    "mismatch_bounded",  # the same, of each token at most so much that one alone says nothing
    "mismatch_ratio_sum",  # pi_old / mu: its mean is near 1 where the sampler covers the policy
    "importance",  # weight between sampler and trainer
    "importance_clipped",  # tokens whose ratio was outside the bounds: truncated or masked
)
# Of these, the ones that hold the global denominator.
DIVIDED_METRICS = ("loss", "policy_loss")
# Reduced by maximum.
MAX_METRICS = ("ratio_max",)


def empty_metrics(device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """All metrics at 0: what a rank without sequences adds to the reduction."""
    zero = torch.zeros((), device=device)
    return dict.fromkeys(SUM_METRICS + MAX_METRICS, zero)


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of several micro-batches or ranks as one: the sum, and the maximum of MAX_METRICS."""
    merged = {name: float(sum(part[name] for part in parts)) for name in SUM_METRICS}
    merged.update({name: max((float(part[name]) for part in parts), default=0.0) for name in MAX_METRICS})
    return merged


def metric_means(merged: Mapping[str, float]) -> dict[str, float]:
    """What a person reads, from merged metrics; those that nothing was measured for are left out.

    Returns:
        `loss`, `policy_loss`, `tokens`; per-token means `clip_fraction`, `clip_low_fraction`,
        `clip_high_fraction`, `ratio_mean`, `update_kl`; `ratio_max`; `kl`; `entropy`; `mismatch_kl`,
        `mismatch_ratio` (mean exp|l_old - l_mu|; look at the sampler when it passes 1.02),
        `mismatch_bounded` (the same with a bound for each token),
        `sampler_ratio_mean` (mean pi_old / mu), `importance_mean`, `importance_clipped_fraction`.
    """
    means = {name: float(merged[name]) for name in ("loss", "policy_loss", "tokens", "ratio_max")}
    tokens = merged["tokens"]
    if tokens:
        means["clip_fraction"] = (merged["clip_low"] + merged["clip_high"]) / tokens
        means["clip_low_fraction"] = merged["clip_low"] / tokens
        means["clip_high_fraction"] = merged["clip_high"] / tokens
        means["ratio_mean"] = merged["ratio"] / tokens
        means["update_kl"] = merged["update_k3"] / tokens
    if merged["kl_tokens"]:
        means["kl"] = merged["kl"] / merged["kl_tokens"]
    if merged["entropy_tokens"]:
        means["entropy"] = merged["entropy"] / merged["entropy_tokens"]
    if merged["mismatch_tokens"]:
        tokens = merged["mismatch_tokens"]
        means["mismatch_kl"] = merged["mismatch_k3"] / tokens
        means["mismatch_ratio"] = merged["mismatch_exp_abs"] / tokens
        means["mismatch_bounded"] = merged["mismatch_bounded"] / tokens
        means["sampler_ratio_mean"] = merged["mismatch_ratio_sum"] / tokens
        means["importance_mean"] = merged["importance"] / tokens
        means["importance_clipped_fraction"] = merged["importance_clipped"] / tokens
    return means


def passes_ratio_bound(merged: Mapping[str, float], bound: float | None) -> bool:
    """Whether the mean ratio pi / pi_old of a mini-batch is past `bound`: drop its update and the rest.

    The mean is over all trained tokens of the mini-batch, all ranks (RLinf's early stop, there with bound 5).
    `bound` None: never.
    """
    return bound is not None and merged["tokens"] > 0 and merged["ratio"] / merged["tokens"] > bound
