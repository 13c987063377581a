"""How the policy is improved: advantages, loss, clipping, KL, optimizer, and the supervised warm start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ModelWrapValidatorHandler, model_validator

from rl_api.base import MOST, Allowed, Model
from rl_api.describe import type_of
from rl_api.recipes import RECIPES, recipe

GROUP_ESTIMATORS: Final = ("groupMean", "leaveOneOut", "maxRl")
"""Advantage estimators that compare the answers of a group: groups of one teach them nothing."""

AlgorithmName = Annotated[
    str,
    Field(pattern=rf"^({'|'.join(RECIPES)}|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$", max_length=253),
    Allowed(f"{', '.join(RECIPES)} or module:function"),
]
"""A recipe, or a Python function that a learner can import."""


class AdvantageSpec(Model):
    """How rewards become advantages. Groups whose rewards are all equal have advantage 0 (and groups of one)."""

    estimator: Literal["groupMean", "leaveOneOut", "maxRl", "batchNormalized", "gae"] = "groupMean"
    """groupMean: reward minus the group's mean; leaveOneOut: minus the mean of the others; maxRl: minus the mean,
    over the mean, for rewards >= 0; batchNormalized: the return of every token, normalised over all tokens of the
    batch; gae: generalised advantage estimation of every token from a critic's values, normalised over all tokens of
    the batch."""
    normalize_by_std: bool = True
    """For groupMean and leaveOneOut: divide by the group's unbiased standard deviation."""
    epsilon: float = Field(default=1e-6, ge=0.0, le=1.0)
    """Added to the standard deviation (maxRl: to the mean)."""
    gamma: float = Field(default=1.0, gt=0.0, le=1.0)
    """For batchNormalized and gae: discount per token, from the reward at the answer's end."""
    lam: float = Field(default=1.0, alias="lambda", ge=0.0, le=1.0)
    """For gae: weight of later rewards against the critic's values; 1: the return minus the value, 0: the error of
    one step."""


class CriticSpec(Model):
    """The critic of estimator gae: a model like the policy with a value for every token, trained beside it.

    It begins as a copy of the policy with a value head of zeros. Its optimizer is an AdamW of its own, with the options
    of `optimizer`.
    """

    learning_rate: float = Field(default=1e-5, ge=0.0, le=1.0)
    """Learning rate of the critic's AdamW after the warm-up."""
    value_clip: float = Field(default=0.2, ge=0.0, le=MOST)
    """How far a value may move in one training step before it stops learning; 0: no limit."""
    gradient_clip: float = Field(default=1.0, gt=0.0, le=MOST)
    """Largest norm of the critic's gradient; larger ones are scaled."""
    warmup_steps: int = Field(default=0, ge=0, le=MOST)
    """First training steps, in which the critic learns and the policy stays."""


class LossSpec(Model):
    """The objective, and how token losses become one number.

    Denominators are global over micro-batches and learner replicas.
    """

    kind: Literal["ppoClip", "gspo", "cispo", "dppo", "reinforce"] = "ppoClip"
    """Objective: ppoClip; gspo (the ratio is a sequence's); cispo (clipped weight, every token learns); dppo (masks
    tokens whose probability moved by more than clip, the ratio is to the sampler: no importance weight is applied);
    reinforce (plain policy gradient). Not used by an algorithm of your own."""
    aggregation: Literal["tokenMean", "sequenceMean", "sequenceSum", "constant"] = "tokenMean"
    """tokenMean: mean over all tokens of the batch; sequenceMean: mean over sequences of each one's token mean;
    sequenceSum: mean over sequences of each one's sum; constant: sum over tokens divided by sequences times
    constantLength."""
    constant_length: int | None = Field(default=None, ge=1, le=16_777_216)
    """Denominator of constant in tokens per sequence; null: sampler.maxNewTokens. Not allowed with other
    aggregations."""
    dual_clip: float | None = Field(default=None, gt=1.0, le=MOST)
    """For ppoClip: the loss of a token with negative advantage is at most this times the advantage's size; null: no
    limit."""
    proximal: Literal["recomputed", "interpolated"] = "recomputed"
    """The policy that the ratio is to: recomputed (the learner's before the step) or interpolated (between the
    sampler's and the learner's by the age of the token: saves a pass with several minibatches)."""


class ClipSpec(Model):
    """Range of the importance ratio between new and old policy: [1 - low, 1 + high].

    For dppo: how far a token's probability may fall and rise.
    """

    low: float = Field(default=0.2, gt=0.0, le=1.0)
    """Lower clip width; 1: no lower bound."""
    high: float = Field(default=0.2, gt=0.0, le=MOST)
    """Upper clip width."""


class ImportanceSpec(Model):
    """Weight that corrects for sampler and learner giving the same tokens other probabilities: old weights, kernels.

    The ratio is the learner's probability over the sampler's.
    """

    kind: Literal["truncate", "mask", "none"] = "truncate"
    """truncate: weigh with the ratio, limited to the bounds; mask: leave out what is outside the bounds; none:
    neither."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio of each token; sequence: the product over the answer; geometric: that product's geometric mean, which
    with mask only decides (weight 1)."""
    low: float | None = Field(default=None, ge=0.0, le=1.0)
    """Lower bound; null: none."""
    high: float = Field(default=2.0, ge=1.0, le=MOST)
    """Upper bound."""


class KlSpec(Model):
    """Penalty that keeps the policy near the reference: the model as reinforcement learning found it."""

    coefficient: float = Field(default=0.0, ge=0.0, le=MOST)
    """Factor of the penalty; 0: no reference model is kept."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Per-token estimate, d = log p_ref - log p: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1."""
    placement: Literal["loss", "reward"] = "loss"
    """loss: a term of the loss; reward: taken from the rewards, before the advantages."""


class OverlongSpec(Model):
    """What happens to answers that come near `sampler.maxNewTokens`, or reach it."""

    buffer: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of sampler.maxNewTokens, at its end, over which the penalty grows from 0 to its full size; 0: no
    penalty."""
    penalty: float = Field(default=1.0, ge=0.0, le=MOST)
    """Taken from the reward of an answer of full length."""
    mask_truncated: bool = False
    """Do not train on answers that were cut off; their rewards still count in the baseline."""


class DynamicSamplingSpec(Model):
    """Groups whose rewards are all equal are replaced by new ones before they are trained on."""

    max_refills: int = Field(default=0, ge=0, le=10_000)
    """Most groups replaced per training step, in multiples of promptsPerStep; the groups after that are kept as they
    are. 0: none are replaced."""


class OptimizerSpec(Model):
    """AdamW and its learning-rate schedule."""

    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = Field(
        default=(0.9, 0.999), strict=False
    )
    """Decay of the first and second moment."""
    epsilon: float = Field(default=1e-8, gt=0.0, le=MOST)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0, le=MOST)
    """Decoupled weight decay."""
    warmup_steps: int = Field(default=0, ge=0, le=MOST)
    """Optimizer steps over which the learning rate rises."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate from the end of the warm-up to the end of the run."""
    min_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Last learning rate as a share of learningRate, for linear and cosine."""


class AlgorithmSpec(Model):
    """The reinforcement-learning algorithm and its batch.

    `name` chooses a recipe: values for advantage, loss, clip, importance, kl, overlong and dynamicSampling that hold
    where the run says nothing else (docs/algorithms.md). The defaults below are those of a name without a recipe.
    """

    name: AlgorithmName = "grpo"
    """A recipe, or your own objective as module:function, looked for beside the run's file first."""
    group_size: int = Field(default=8, ge=1, le=65_536)
    """Completions per prompt; >= 2 where the advantage compares the answers of a group."""
    prompts_per_step: int = Field(default=32, ge=1, le=1_000_000)
    """Prompts (groups) per training step."""
    learning_rate: float = Field(default=1e-6, ge=0.0, le=1.0)
    """Learning rate of AdamW after the warm-up."""
    advantage: AdvantageSpec = AdvantageSpec()
    """How advantages are computed."""
    critic: CriticSpec | None = None
    """The critic of advantage.estimator gae, with null the defaults. Not allowed with other estimators."""
    loss: LossSpec = LossSpec()
    """The objective, and how token losses are combined."""
    clip: ClipSpec = ClipSpec()
    """Clipping of the importance ratio."""
    importance: ImportanceSpec = ImportanceSpec()
    """Correction between sampler and learner."""
    kl: KlSpec = KlSpec()
    """Penalty against the reference model."""
    overlong: OverlongSpec = OverlongSpec()
    """Treatment of long answers."""
    dynamic_sampling: DynamicSamplingSpec = DynamicSamplingSpec()
    """Replacing groups that teach nothing."""
    entropy_coefficient: float = Field(default=0.0, ge=0.0, le=MOST)
    """Factor of the entropy bonus; 0: none."""
    mini_batches: int = Field(default=1, ge=1, le=10_000)
    """Optimizer steps a training step's batch is split into."""
    epochs: int = Field(default=1, ge=1, le=10_000)
    """Passes over each training step's batch."""
    ratio_bound: float | None = Field(default=None, gt=1.0, le=MOST)
    """Drop a minibatch and the rest of its step's when its mean importance ratio is above it; null: never."""
    gradient_clip: float = Field(default=1.0, gt=0.0, le=MOST)
    """Largest norm of the gradient; larger ones are scaled."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW and its schedule."""

    @model_validator(mode="wrap")
    @classmethod
    def _fill_in_recipe(cls, data: Any, handler: ModelWrapValidatorHandler[AlgorithmSpec]) -> AlgorithmSpec:
        """The recipe's values where `data` says nothing. They do not count as set: the file did not say them."""
        if not isinstance(data, Mapping):
            return handler(data)
        name = data.get("name", cls.model_fields["name"].default)
        choices = recipe(name) if isinstance(name, str) else {}
        filled, added = _under(cls, dict(data), choices)
        spec = handler(filled)
        _forget_set(spec, added)
        return spec

    @property
    def sequences_per_step(self) -> int:
        """Completions one training step learns from: promptsPerStep times groupSize."""
        return self.prompts_per_step * self.group_size

    @property
    def value_model(self) -> CriticSpec | None:
        """The critic, where the estimator has one."""
        if self.advantage.estimator != "gae":
            return None
        return self.critic or CriticSpec()

    @property
    def own_objective(self) -> str | None:
        """The user's objective as module:function; None with a recipe."""
        return self.name if ":" in self.name else None


def _under(
    model: type[BaseModel], data: dict[str, Any], choices: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`data` with `choices` (camelCase) where it says nothing, and what was added, by the fields' names in Python.

    `data` is as in a file, or as Python takes it (snake_case, or objects that are made already: those are whole).
    """
    filled = dict(data)
    added: dict[str, Any] = {}
    for alias, choice in choices.items():
        name, field = next((n, f) for n, f in model.model_fields.items() if (f.alias or n) == alias)
        key = name if name in data else alias
        if key not in data:
            filled[key], added[name] = choice, None
        elif isinstance(choice, Mapping) and isinstance(data[key], Mapping):
            inner = type_of(field).model
            assert inner is not None
            filled[key], added[name] = _under(inner, dict(data[key]), choice)
    return filled, added


def _forget_set(spec: BaseModel, added: Mapping[str, Any]) -> None:
    """Takes `added` out of the fields that were set; None: the whole field."""
    for name, inner in added.items():
        if inner is None:
            spec.__pydantic_fields_set__.discard(name)
        elif isinstance(getattr(spec, name), BaseModel):
            _forget_set(getattr(spec, name), inner)


class WarmStartSpec(Model):
    """Supervised training on the task's own solutions, before RL, for models without any skill."""

    max_steps: int = Field(default=100, ge=1, le=MOST)
    """Most optimizer steps."""
    batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Solutions per step."""
    learning_rate: float = Field(default=1e-3, gt=0.0, le=1.0)
    """Learning rate of AdamW."""
    until_score: float | None = Field(default=None, ge=0.0, le=1.0)
    """Stop early at this share of exact matches, sampled on held-out prompts; null: do not."""
