"""Environments of several turns: what a class must offer, and those that come with rltrain, by name."""

from rl_trainer.tasks.environments.base import EnvironmentClass
from rl_trainer.tasks.environments.calculator import Calculator

BUILT_IN: dict[str, type[EnvironmentClass]] = {"calculator": Calculator}
"""Environments that `task.name` can name without a module."""

__all__ = ["BUILT_IN", "Calculator", "EnvironmentClass"]
