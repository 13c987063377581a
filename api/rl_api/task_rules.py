"""Rules across the fields of `task`: where prompts come from, what rewards name, who has simulators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_api.place_rules import ONE_SOURCE
from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec
from rl_api.task import RewardRule

NAMED: Final = {
    "reasoning-gym": "the generator, such as chain_sum",
    "tool-use": "such as calculator",
    "gymnasium": "such as FrozenLake-v1",
}
"""What `task.name` says, by `task.environment`, where it must say something."""

NO_REWARD_OF_THE_GAME: Final = (
    "found no part of rule task, allowed with task.environment gymnasium: at least one, "
    "which counts what the game gives"
)
"""What is said of a game without its reward."""


def task_source(spec: RunSpec) -> Iterator[Problem]:
    """One of `task.file` and `task.dataset` is set for prompts, none for reasoning-gym and gymnasium; `task.name` for all
    but prompts; `task.simulators` for tool-use and gymnasium alone."""
    task = spec.given_task
    if task is None:
        return
    environment = task.environment
    if task.file is not None and task.dataset is not None:
        yield spec_problem("task.dataset", f"found an object, {ONE_SOURCE}", "task.file")
    if environment == "prompts" and task.file is None and task.dataset is None:
        yield spec_problem(
            "task.file",
            "missing, required with task.environment prompts: a file of prompts, or task.dataset",
            "task.environment",
        )
    if environment in ("reasoning-gym", "gymnasium"):
        for name, found in (
            ("file", task.file and repr(task.file)),
            ("dataset", task.dataset and "an object"),
        ):
            if found:
                yield spec_problem(
                    f"task.{name}",
                    f"found {found}, allowed: null with task.environment {environment}, which makes prompts",
                    "task.environment",
                )
    if environment != "prompts" and task.name is None:
        yield spec_problem(
            "task.name",
            f"missing, required with task.environment {environment}: {NAMED[environment]}",
            "task.environment",
        )
    if task.simulators is not None and not task.dialogues:
        yield spec_problem(
            "task.simulators",
            f"found an object, allowed: null with task.environment {environment}, which has nothing to simulate",
            "task.environment",
        )


def _rewards(spec: RunSpec) -> tuple[RewardRule, ...]:
    return spec.given_task.rewards if spec.given_task is not None else ()


def reward_parts(spec: RunSpec) -> Iterator[Problem]:
    """A reward of rule regex has `pattern`, one of rule function has `function`, and no other has them."""
    for index, reward in enumerate(_rewards(spec)):
        path = f"task.rewards[{index}]"
        for field, rule, value, what in (
            ("pattern", "regex", reward.pattern, "a regular expression"),
            ("function", "function", reward.function, "module:function"),
        ):
            if reward.rule == rule and value is None:
                yield spec_problem(
                    f"{path}.{field}", f"missing, required with rule {rule}: {what}", f"{path}.rule"
                )
            if reward.rule != rule and value is not None:
                yield spec_problem(
                    f"{path}.{field}",
                    f"found {value!r}, allowed: null with rule {reward.rule}, as only rule {rule} uses it",
                    f"{path}.rule",
                )


def own_scorer(spec: RunSpec) -> Iterator[Problem]:
    """A reward of rule task needs an environment with a scorer of its own: reasoning-gym, tool-use or gymnasium."""
    if spec.given_task is not None and spec.given_task.environment == "prompts":
        for index, reward in enumerate(_rewards(spec)):
            if reward.rule == "task":
                yield spec_problem(
                    f"task.rewards[{index}].rule",
                    "found 'task', allowed: exactMatch, number, regex, function or fraction, as environment "
                    "prompts has no scorer of its own",
                    "task.environment",
                )


def rewards_of_games(spec: RunSpec) -> Iterator[Problem]:
    """A reward of rule task is among those of gymnasium: what a game gives counts through nothing else."""
    if spec.given_task is None or spec.given_task.environment != "gymnasium":
        return
    if all(reward.rule != "task" for reward in _rewards(spec)):
        yield spec_problem("task.rewards", NO_REWARD_OF_THE_GAME, "task.environment")


TASK_RULES: Final = (task_source, reward_parts, own_scorer, rewards_of_games)
"""All of them."""
