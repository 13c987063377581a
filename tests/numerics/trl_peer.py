"""TRL's methods, called unbound on an object that has what they read: the trainer itself would need a model and data.

`GRPOTrainer._compute_loss` gets log-probs and entropies from a method, which here gives those of the batch.
`_generate_and_score_completions` (GRPO's and RLOO's) gets completions and rewards in the same way, and gives
advantages and importance ratios.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from numerics_batches import Batch
from torch import Tensor
from trl import GRPOConfig, RLOOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

_ACCELERATOR = SimpleNamespace(
    device=torch.device("cpu"),
    process_index=0,
    num_processes=1,
    sync_gradients=True,
    gather=lambda values: values,
    reduce=lambda values, reduction: values,
)
_REFERENCE = object()


def grpo_loss(
    log_probs: Tensor,
    batch: Batch,
    *,
    entropies: Tensor | None = None,
    advantages: Tensor | None = None,
    importance_ratio: Tensor | None = None,
    max_length: int = 1,
    **settings: Any,
) -> Tensor:
    """`GRPOTrainer._compute_loss` of one batch that is one optimizer step; `settings` are GRPOConfig's."""
    config = GRPOConfig(use_cpu=True, bf16=False, report_to="none", **settings)
    entropies = torch.zeros_like(log_probs) if entropies is None else entropies
    trainer = SimpleNamespace(
        args=SimpleNamespace(**{**vars(config), "steps_per_generation": 1}),
        accelerator=_ACCELERATOR,
        model=SimpleNamespace(training=True),
        loss_type=config.loss_type,
        beta=config.beta,
        epsilon_low=config.epsilon,
        epsilon_high=config.epsilon if config.epsilon_high is None else config.epsilon_high,
        importance_sampling_level=config.importance_sampling_level,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=importance_ratio is not None,
        vllm_importance_sampling_correction=True,
        max_completion_length=max_length,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        entropy_coef=config.entropy_coef,
        _entropy_bonus_enabled=config.entropy_coef != 0.0,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *inputs, **more: (log_probs, entropies, None),
    )
    prompt = torch.zeros(len(batch.mask), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": torch.zeros_like(batch.mask, dtype=torch.long),
        "completion_mask": batch.mask,
        "advantages": batch.token_advantages if advantages is None else advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference,
        "importance_sampling_ratio": importance_ratio,
        "num_items_in_batch": batch.mask.sum(),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


def scored(
    batch: Batch,
    *,
    importance_mode: str = "token_truncate",
    clip_min: float | None = None,
    clip_max: float | None = 3.0,
    **settings: Any,
) -> dict[str, Tensor]:
    """What `GRPOTrainer._generate_and_score_completions` gives: `advantages`, [B], `importance_sampling_ratio`."""
    trainer = _scoring(GRPOConfig(use_cpu=True, bf16=False, report_to="none", **settings), batch)
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    trainer.vllm_importance_sampling_mode = importance_mode
    trainer.vllm_importance_sampling_clip_min = clip_min
    trainer.vllm_importance_sampling_clip_max = clip_max
    return _score(GRPOTrainer, trainer, batch)


def rloo_advantages(batch: Batch, **settings: Any) -> Tensor:
    """[B], of `RLOOTrainer._generate_and_score_completions`."""
    config = RLOOConfig(use_cpu=True, bf16=False, report_to="none", **settings)
    trainer = _scoring(config, batch)
    prompts, completions, _, texts, *_ = trainer._generate([])
    trainer._generate = lambda inputs: (prompts, completions, texts)
    return _score(RLOOTrainer, trainer, batch)["advantages"]


def rloo_loss(log_probs: Tensor, batch: Batch) -> Tensor:
    """`RLOOTrainer._compute_loss`: every token of a completion counts, so the batch has no holes."""
    trainer = SimpleNamespace(
        accelerator=_ACCELERATOR,
        model=SimpleNamespace(training=True),
        epsilon_low=0.2,
        epsilon_high=0.2,
        beta=0.0,
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *inputs, **more: (
            log_probs,
            torch.zeros_like(log_probs),
            None,
        ),
    )
    prompt = torch.zeros(len(batch.mask), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": torch.zeros_like(batch.mask, dtype=torch.long),
        "completion_mask": batch.mask,
        "old_logps": (batch.old * batch.mask).sum(dim=1),
        "advantages": batch.advantages,
    }
    return RLOOTrainer._compute_loss(trainer, None, inputs)


def _scoring(config: GRPOConfig | RLOOConfig, batch: Batch) -> SimpleNamespace:
    rows, tokens = batch.mask.shape
    completions = (
        [[0]] * rows,  # prompts
        [[0] * tokens] * rows,
        batch.mask.long().tolist(),  # tool mask: 0 is what an environment said
        [""] * rows,
        batch.sampler.tolist(),
        {},
        None,
        None,
    )
    return SimpleNamespace(
        **{
            name: value
            for name, value in vars(config).items()
            if name in ("scale_rewards", "beta", "reward_clip_range")
        },
        normalize_advantages=getattr(config, "normalize_advantages", None),
        multi_objective_aggregation=getattr(config, "multi_objective_aggregation", None),
        args=config,
        accelerator=_ACCELERATOR,
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        environment_factories=None,
        environments=None,
        tools=None,
        ref_model=_REFERENCE,
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        log_multimodal=False,
        num_iterations=1,
        num_generations=batch.group_size,
        reward_weights=torch.ones(1, dtype=torch.float64),
        reward_func_names=["reward"],
        reward_funcs=[None],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _generate=lambda prompts: completions,
        _get_per_token_logps_and_entropies=lambda model, *inputs, **more: (
            batch.reference if model is _REFERENCE else batch.old,
            None,
            None,
        ),
        _calculate_rewards=lambda *inputs: batch.rewards.unsqueeze(1).clone(),
        _metrics={"train": defaultdict(list)},
        _logs={
            "prompt": [],
            "completion": [],
            "rewards": defaultdict(list),
            "advantages": [],
            "extra": defaultdict(list),
        },
        _pending_extra_logs={},
        _pending_metrics={},
    )


def _score(trainer_class: type, trainer: SimpleNamespace, batch: Batch) -> dict[str, Tensor]:
    rows = [{"prompt": ""} for _ in range(len(batch.mask))]
    torch.set_default_dtype(torch.float64)  # it makes tensors of the lists that generation gives
    try:
        return trainer_class._generate_and_score_completions(trainer, rows)
    finally:
        torch.set_default_dtype(torch.float32)
