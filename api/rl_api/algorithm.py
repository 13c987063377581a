"""How the policy is improved: advantages, loss, clipping, KL, optimizer, and the supervised warm start."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from rl_api.base import Model

GROUP_BASELINES: Final = frozenset({"grpo"})
"""Algorithms whose baseline is the mean reward of a prompt's group: groups of one teach them nothing."""


class AdvantageSpec(Model):
    """Group-relative advantage: reward minus the group's mean, over the group's standard deviation."""

    normalize_by_std: bool = Field(
        default=True, description="Divide by the group's unbiased standard deviation."
    )
    epsilon: float = Field(default=1e-6, ge=0.0, le=1.0, description="Added to the standard deviation.")


class LossSpec(Model):
    """How token losses become one number. Denominators are global over micro-batches and learner replicas."""

    aggregation: Literal["tokenMean", "sequenceMean", "constant"] = Field(
        default="tokenMean",
        description="tokenMean: mean over all tokens of the batch; sequenceMean: mean over sequences of each "
        "one's token mean; constant: sum over tokens divided by sequences times constantLength.",
    )
    constant_length: int | None = Field(
        default=None,
        ge=1,
        description="Denominator in tokens per sequence; required for constant, else not allowed.",
    )


class ClipSpec(Model):
    """Range of the importance ratio between new and old policy: [1 - low, 1 + high]."""

    low: float = Field(default=0.2, gt=0.0, lt=1.0, description="Lower clip width.")
    high: float = Field(default=0.2, gt=0.0, description="Upper clip width.")


class KlSpec(Model):
    """Penalty that keeps the policy near the reference: the model as reinforcement learning found it."""

    coefficient: float = Field(
        default=0.0, ge=0.0, description="Factor of the penalty; 0: no reference model is kept."
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3",
        description="Per-token estimate, d = log p_ref - log p: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1.",
    )


class OptimizerSpec(Model):
    """AdamW and its learning-rate schedule."""

    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = Field(
        default=(0.9, 0.999), strict=False, description="Decay of the first and second moment."
    )
    epsilon: float = Field(default=1e-8, gt=0.0, description="Added to the root of the second moment.")
    weight_decay: float = Field(default=0.0, ge=0.0, description="Decoupled weight decay.")
    warmup_steps: int = Field(
        default=0, ge=0, description="Optimizer steps over which the learning rate rises."
    )
    decay: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="Shape of the learning rate from the end of the warm-up to the end of the run.",
    )
    min_ratio: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Last learning rate as a share of learningRate, for linear and cosine.",
    )


class AlgorithmSpec(Model):
    """The reinforcement-learning algorithm and its batch."""

    name: Literal["grpo"] = Field(
        default="grpo", description="Algorithm: grpo (group-relative policy optimisation)."
    )
    group_size: int = Field(
        default=8,
        ge=1,
        description="Completions per prompt; >= 2 for grpo, whose baseline is the group's mean.",
    )
    prompts_per_step: int = Field(default=32, ge=1, description="Prompts (groups) per training step.")
    learning_rate: float = Field(
        default=1e-6, ge=0.0, le=1.0, description="Learning rate of AdamW after the warm-up."
    )
    advantage: AdvantageSpec = Field(
        default_factory=AdvantageSpec, description="How advantages are computed."
    )
    loss: LossSpec = Field(default_factory=LossSpec, description="How token losses are combined.")
    clip: ClipSpec = Field(default_factory=ClipSpec, description="Clipping of the importance ratio.")
    kl: KlSpec = Field(default_factory=KlSpec, description="Penalty against the reference model.")
    entropy_coefficient: float = Field(
        default=0.0, ge=0.0, description="Factor of the entropy bonus; 0: none."
    )
    mini_batches: int = Field(
        default=1, ge=1, description="Optimizer steps a training step's batch is split into."
    )
    epochs: int = Field(default=1, ge=1, description="Passes over each training step's batch.")
    ratio_bound: float | None = Field(
        default=None,
        gt=1.0,
        description="Drop a minibatch and the rest of its step's when its mean importance ratio is above it; "
        "null: never.",
    )
    gradient_clip: float = Field(
        default=1.0, gt=0.0, description="Largest norm of the gradient; larger ones are scaled."
    )
    importance_cap: float | None = Field(
        default=2.0,
        gt=0.0,
        description="Cap of the truncated importance weight, learner over sampler probability; null: off.",
    )
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec, description="AdamW and its schedule.")

    @property
    def sequences_per_step(self) -> int:
        """Completions one training step learns from: promptsPerStep times groupSize."""
        return self.prompts_per_step * self.group_size


class WarmStartSpec(Model):
    """Supervised training on the task's own solutions, before RL, for models without any skill."""

    max_steps: int = Field(default=100, ge=1, description="Most optimizer steps.")
    batch_size: int = Field(default=64, ge=1, description="Solutions per step.")
    learning_rate: float = Field(default=1e-3, gt=0.0, le=1.0, description="Learning rate of AdamW.")
    until_score: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Stop early at this share of exact matches, sampled on held-out prompts; null: do not.",
    )
