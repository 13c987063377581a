"""OpenRLHF's functions. Its packages import DeepSpeed, flash-attn and peft, none of which has to do with a formula.

So the packages are entered without their `__init__`, and two modules that only start programs are empty: `deepspeed`, and
`openrlhf.trainer.ray.launcher`. The files compared are the installed ones: models/loss.py, models/utils.py,
trainer/ppo_utils/{experience_maker,length_penalty}.py.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from numerics_batches import Batch
from torch import Tensor


def _import(*names: str) -> list[ModuleType]:
    spec = find_spec("openrlhf")
    assert spec is not None and spec.origin is not None
    for package in ("models", "utils", "trainer", "trainer.ray"):
        module = ModuleType(f"openrlhf.{package}")
        module.__path__ = [str(Path(spec.origin).parent.joinpath(*package.split(".")))]
        sys.modules[module.__name__] = module
    launcher = ModuleType("openrlhf.trainer.ray.launcher")
    launcher.RayActorGroup = object  # type: ignore[attr-defined]
    sys.modules[launcher.__name__] = launcher
    sys.modules["deepspeed"] = module_from_spec(ModuleSpec("deepspeed", None))
    try:
        return [import_module(f"openrlhf.{name}") for name in names]
    finally:
        del sys.modules["deepspeed"]


_loss, _utils, _maker, _lengths = _import(
    "models.loss", "models.utils", "trainer.ppo_utils.experience_maker", "trainer.ppo_utils.length_penalty"
)
PolicyLoss, ValueLoss, aggregate_loss = _loss.PolicyLoss, _loss.ValueLoss, _loss.aggregate_loss
compute_approx_kl, compute_reward = _utils.compute_approx_kl, _utils.compute_reward
RemoteExperienceMaker = _maker.RemoteExperienceMaker


def log_probs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    return _utils.log_probs_from_logits(logits.clone(), tokens, temperature)  # it divides them in place


def policy_loss(
    log_probs: Tensor, batch: Batch, *, advantages: Tensor | None = None, **settings: Any
) -> Tensor:
    loss, *_ = PolicyLoss(**settings)(
        log_probs,
        batch.old,
        batch.token_advantages if advantages is None else advantages,
        batch.mask,
        rollout_log_probs=batch.sampler,
    )
    return loss


def advantages(estimator: str, batch: Batch, *, gamma: float = 1.0) -> Tensor:
    """[B, T]: the experience maker's own method, for one batch with all groups."""
    experience = SimpleNamespace(
        rewards=batch.rewards.clone(),
        index=list(range(len(batch.rewards))),
        info={},
        kl=torch.zeros_like(batch.mask),
        action_mask=batch.mask,
    )
    algorithm = SimpleNamespace(estimator=estimator, gamma=gamma, lambd=1.0, no_std_norm=False)
    args = SimpleNamespace(
        reward=SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None, clip_range=None),
        rollout=SimpleNamespace(n_samples_per_prompt=batch.group_size),
        algo=SimpleNamespace(advantage=algorithm),
    )
    maker = SimpleNamespace(
        strategy=SimpleNamespace(args=args),
        kl_ctl=SimpleNamespace(value=0.0),
        advantage_estimator=estimator,
        get_cumulative_returns=lambda *inputs: RemoteExperienceMaker.get_cumulative_returns(None, *inputs),
    )
    [scored] = RemoteExperienceMaker.compute_advantages_and_returns(maker, [experience])
    return scored.advantages


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns, [B, T], not normalised."""
    return RemoteExperienceMaker.get_advantages_and_returns(None, values, rewards, mask, gamma, lam)


def overlong_penalties(lengths: list[int], limit: int, buffer: int, factor: float) -> Tensor:
    experience = SimpleNamespace(
        response_length=torch.tensor(lengths), rewards=torch.zeros(len(lengths), dtype=torch.float64)
    )
    _lengths.apply_overlong_penalty([experience], limit, buffer, factor)
    return experience.rewards
