"""Environments of several turns: what a class must offer, and those that come with rltrain, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

from rl_trainer.tasks.environments.base import EnvironmentClass
from rl_trainer.tasks.environments.calculator import Calculator
from rl_trainer.tasks.environments.search import Searches

BUILT_IN: dict[str, Callable[[Path | None], type[EnvironmentClass]]] = {
    "calculator": lambda search: Calculator,
    "search": lambda search: cast(type[EnvironmentClass], Searches(search)),
}
"""Environments that `task.name` can name without a module, each made for the folder in which files are looked for first."""

__all__ = ["BUILT_IN", "Calculator", "EnvironmentClass", "Searches"]
