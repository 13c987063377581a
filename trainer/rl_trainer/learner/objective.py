"""The policy loss that a run asks for, and a user's own objective in it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from rl_api import RunSpec
from rl_api.errors import ObjectiveError
from rl_trainer.algorithms.batch_advantages import kl_in_reward
from rl_trainer.algorithms.importance import ImportanceConfig
from rl_trainer.algorithms.losses import PolicyLossConfig
from rl_trainer.algorithms.policy_losses import LossInputs, UserObjective
from rl_trainer.tasks.functions import file_of, line_of, load_function


def policy_loss_config(spec: RunSpec, objective: UserObjective | None = None) -> PolicyLossConfig:
    """The loss that `spec.algorithm` asks for; `objective`: the user's own, where its name is module:function."""
    algorithm = spec.algorithm
    importance = algorithm.importance
    return PolicyLossConfig(
        objective=algorithm.loss.kind,
        user_objective=objective,
        clip_low=algorithm.clip.low,
        clip_high=algorithm.clip.high,
        dual_clip=algorithm.loss.dual_clip,
        aggregation=algorithm.loss.aggregation,
        kl_coefficient=0.0 if kl_in_reward(spec) else algorithm.kl.coefficient,
        kl_estimator=algorithm.kl.estimator,
        entropy_coefficient=algorithm.entropy_coefficient,
        importance=ImportanceConfig(importance.kind, importance.level, importance.low, importance.high),
        proximal=algorithm.loss.proximal,
    )


def load_objective(spec: RunSpec, search: Path | None) -> UserObjective | None:
    """The user's objective where `algorithm.name` is module:function; what it raises becomes an ObjectiveError.

    Raises TaskError when there is no such function.
    """
    name = spec.algorithm.own_objective
    if name is None:
        return None
    function = load_function(name, search, "algorithm.name")
    file = file_of(function)

    def guarded(inputs: LossInputs) -> Tensor:
        try:
            loss: Tensor = function(inputs)
        except Exception as error:
            raise ObjectiveError(
                f"algorithm.name: {name} raised {type(error).__name__}: {error} ({line_of(error, file)})"
            ) from error
        return loss

    return guarded
