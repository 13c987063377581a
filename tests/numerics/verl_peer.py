"""verl's functions, with the settings of its configuration that a comparison needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numerics_batches import Batch
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import (
    compute_offpolicy_metrics,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.utils import torch_functional
from verl.workers.config import ActorConfig
from verl.workers.reward_manager.dapo import DAPORewardManager

NO_DUAL_CLIP = 1e9
kl_penalty = core_algos.kl_penalty
compute_rewards = core_algos.compute_rewards
masked_whiten = torch_functional.masked_whiten
log_probs = torch_functional.logprobs_from_logits_v2
entropies = torch_functional.entropy_from_logits


def actor_config(
    low: float = 0.2, high: float = 0.2, dual_clip: float = NO_DUAL_CLIP, **settings: Any
) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=low,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual_clip,
        **settings,
    )


def policy_loss(
    name: str,
    log_probs: Tensor,
    batch: Batch,
    *,
    advantages: Tensor | None = None,
    aggregation: str = "token-mean",
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    horizon: int | None = None,
    counts: dict[str, int] | None = None,
    **settings: Any,
) -> Tensor:
    """The loss registered under `name`.

    `horizon` is the constant of seq-mean-token-sum-norm; `counts` are those of the whole batch, where this is a part.
    """
    config = actor_config(**settings)
    config.global_batch_info.update(counts or {})
    if horizon is not None:
        config.global_batch_info["loss_scale_factor"] = horizon
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=batch.old,
        log_prob=log_probs,
        advantages=batch.token_advantages if advantages is None else advantages,
        response_mask=batch.mask if mask is None else mask,
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=weights,
    )
    return loss


def advantages(name: str, batch: Batch, token_rewards: Tensor | None = None, **settings: Any) -> Tensor:
    """[B, T], of a reward per token, or of the batch's rewards: verl sums them over a sequence."""
    if token_rewards is None:
        token_rewards = torch.zeros_like(batch.mask)
        token_rewards[:, 0] = batch.rewards
    result, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=token_rewards,
        response_mask=batch.mask,
        index=np.array(batch.group_ids),
        **settings,
    )
    return result


def importance_weights(log_ratio: Tensor, mask: Tensor, level: str, threshold: str | float) -> Tensor:
    return compute_rollout_correction_weights(log_ratio, mask, level, threshold)[0]


def rejection_mask(log_ratio: Tensor, mask: Tensor, criterion: str, threshold: str | float) -> Tensor:
    return compute_rollout_rejection_mask(log_ratio, mask, criterion, threshold)[0]


def offpolicy_metrics(batch: Batch) -> dict[str, float]:
    return compute_offpolicy_metrics(batch.old, batch.sampler, batch.mask)


def importance_metrics(log_ratio: Tensor, mask: Tensor, threshold: str | float) -> dict[str, float]:
    return compute_rollout_correction_weights(log_ratio, mask, "token", threshold)[1]


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Whitened advantages, and returns."""
    return core_algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)


def reinforce_plus_plus(rewards: Tensor, mask: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns."""
    config = SimpleNamespace(gamma=gamma)
    return core_algos.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=config)


def overlong_penalties(lengths: list[int], limit: int, buffer: int, factor: float) -> Tensor:
    """What verl's reward manager for DAPO gives for answers of these lengths whose score is 0."""
    manager = DAPORewardManager(
        SimpleNamespace(decode=lambda tokens, **options: "", eos_token="</s>"),
        num_examine=0,
        compute_score=lambda **sample: 0.0,
        max_resp_len=limit,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=buffer, penalty_factor=factor, log=False),
    )
    rows = len(lengths)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()
    tokens = torch.zeros_like(mask)
    sources = {"reward_model": [{"ground_truth": ""}] * rows, "data_source": [""] * rows}
    data = DataProto.from_dict(
        tensors={
            "prompts": tokens[:, :1],
            "responses": tokens,
            "attention_mask": torch.cat([torch.ones(rows, 1, dtype=torch.long), mask], dim=1),
        },
        non_tensors={name: np.array(values, dtype=object) for name, values in sources.items()},
    )
    return manager(data).sum(dim=1).double()


def value_loss(values: Tensor, batch: Batch, clip: float, aggregation: str, horizon: int) -> Tensor:
    return core_algos.compute_value_loss(
        values,
        batch.returns,
        batch.old_values,
        batch.mask,
        clip,
        loss_agg_mode=aggregation,
        loss_scale_factor=horizon,
    )[0]


def aggregated(values: Tensor, batch: Batch, aggregation: str, horizon: int) -> Tensor:
    return core_algos.agg_loss(values, batch.mask, aggregation, loss_scale_factor=horizon)
