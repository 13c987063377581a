"""Rules across the fields of `task`: where prompts come from, what rewards name, who has workers."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Final

from rl_api.place_rules import ONE_SOURCE, wrong_model_address, wrong_model_on_a_cluster
from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec
from rl_api.task import RewardRule

MODEL_MISSING: Final = "missing, required with a reward of rule model: the model that scores"
"""What is said where there is none."""

MODEL_UNUSED: Final = "found an object, allowed: null without a reward of rule model, which alone uses it"
"""What is said where nobody uses it."""

ONE_ANSWER: Final = "found 1, allowed: none or two, for and against the completion"
"""What is said of a single answer."""

JUDGED: Final = ("prompt", "completion", "answer")
"""What `task.rewardModel.template` may refer to."""

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
                    "found 'task', allowed: exactMatch, number, regex, function, fraction or model, as environment "
                    "prompts has no scorer of its own",
                    "task.environment",
                )


def rewards_of_games(spec: RunSpec) -> Iterator[Problem]:
    """A reward of rule task is among those of gymnasium: what a game gives counts through nothing else."""
    if spec.given_task is None or spec.given_task.environment != "gymnasium":
        return
    if all(reward.rule != "task" for reward in _rewards(spec)):
        yield spec_problem("task.rewards", NO_REWARD_OF_THE_GAME, "task.environment")


def scoring_model(spec: RunSpec) -> Iterator[Problem]:
    """A reward of rule model needs `task.rewardModel`, which no other has, and whose `answers` are two, of a judge alone."""
    task = spec.given_task
    if task is None:
        return
    model = task.reward_model
    asked = [index for index, reward in enumerate(task.rewards) if reward.rule == "model"]
    if model is None:
        if asked:
            yield spec_problem("task.rewardModel", MODEL_MISSING, f"task.rewards[{asked[0]}].rule")
        return
    if not asked:
        yield spec_problem("task.rewardModel", MODEL_UNUSED, "task.rewards")
    if model.answers and model.kind != "judge":
        yield spec_problem(
            "task.rewardModel.answers",
            f"found {len(model.answers)}, allowed: none with kind {model.kind}, as only a judge answers",
            "task.rewardModel.kind",
        )
    elif len(model.answers) == 1:
        yield spec_problem("task.rewardModel.answers", ONE_ANSWER)


def scoring_template(spec: RunSpec) -> Iterator[Problem]:
    """`task.rewardModel.template` refers to prompt, completion and answer only, and to completion."""
    model = spec.given_task.reward_model if spec.given_task is not None else None
    if model is None or model.template is None:
        return
    keys = f"{{{'}, {'.join(JUDGED)}}}"
    try:
        parts = [part[1:] for part in string.Formatter().parse(model.template) if part[1] is not None]
    except ValueError as error:
        yield spec_problem(
            "task.rewardModel.template",
            f"found a broken template ({error}), allowed: {keys}; write {{{{ for a brace",
        )
        return
    for name, form, conversion in parts:
        if name not in JUDGED or form or conversion:
            found = f"{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}"
            yield spec_problem(
                "task.rewardModel.template",
                f"found {f'{{{found}}}'!r}, allowed: {keys}; write {{{{ for a brace",
            )
    if all(name != "completion" for name, _, _ in parts):
        yield spec_problem(
            "task.rewardModel.template", "found no {completion}, required: it is what is scored"
        )


def scoring_address(spec: RunSpec) -> Iterator[Problem]:
    """An address in `task.rewardModel.source` is s3://bucket/folder without `..`: no other scheme is opened."""
    model = spec.given_task.reward_model if spec.given_task is not None else None
    if model is not None and (wrong := wrong_model_address(model.source)):
        yield spec_problem("task.rewardModel.source", wrong)


def scoring_model_on_a_cluster(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `task.rewardModel.source` is a hub id, s3://bucket/folder or an absolute folder of the image."""
    model = spec.given_task.reward_model if spec.given_task is not None else None
    if model is None or wrong_model_address(model.source):
        return
    if wrong := wrong_model_on_a_cluster(model.source):
        yield spec_problem("task.rewardModel.source", wrong)


TASK_RULES: Final = (
    *(task_source, reward_parts, own_scorer, rewards_of_games),
    *(scoring_model, scoring_template, scoring_address),
)
"""All of them."""
