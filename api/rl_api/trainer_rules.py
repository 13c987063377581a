"""The rules of `spec.trainer`: what each kind needs of a run, and what it refuses. See `rl_api.rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec
from rl_api.trainer import OWN_VARIABLES

MODEL_NEEDED: Final = "the policy to start from, with its source, such as tiny"
TASK_NEEDED: Final = "what to train on, with its environment, such as prompts"


def model_and_task(spec: RunSpec) -> Iterator[Problem]:
    """`model` and `task` are given, but with `trainer.kind` command, whose program may know its own."""
    kind = spec.trainer.kind
    if kind == "command":
        return
    for name, given, what in (
        ("model", spec.given_model, MODEL_NEEDED),
        ("task", spec.given_task, TASK_NEEDED),
    ):
        if given is None:
            yield spec_problem(name, f"missing, required with trainer.kind {kind}: {what}", "trainer.kind")


def program(spec: RunSpec) -> Iterator[Problem]:
    """`trainer.command` is given with `trainer.kind` command, and with no other."""
    kind = spec.trainer.kind
    if kind == "command" and not spec.trainer.command:
        yield spec_problem(
            "trainer.command",
            "missing, required with trainer.kind command: a program and its arguments, such as [python, train.py]",
            "trainer.kind",
        )
    if kind != "command" and spec.trainer.command:
        yield spec_problem(
            "trainer.command",
            f"found a list, allowed: an empty list with trainer.kind {kind}, which has its own program",
            "trainer.kind",
        )


def of_other_kinds(spec: RunSpec) -> Iterator[Problem]:
    """`trainer.env` is set with kind command or verl; `config`, `workers`, `pools` and `resources` with command."""
    trainer = spec.trainer
    if trainer.kind == "rltrain" and trainer.env:
        yield spec_problem(
            "trainer.env",
            "found a list, allowed: an empty list with trainer.kind rltrain, as only command and verl use it",
            "trainer.kind",
        )
    if trainer.kind == "command":
        return
    for name, given, found, none in (
        ("config", trainer.config is not None, "an object", "null"),
        ("workers", trainer.workers, "a list", "an empty list"),
        ("pools", trainer.pools, "a list", "an empty list"),
        ("resources", trainer.resources is not None, "an object", "null"),
    ):
        if given:
            yield spec_problem(
                f"trainer.{name}",
                f"found {found}, allowed: {none} with trainer.kind {trainer.kind}, as only command uses it",
                "trainer.kind",
            )


def workers_once(spec: RunSpec) -> Iterator[Problem]:
    """`trainer.workers` names each role at most once."""
    workers = spec.trainer.workers
    if len(set(workers)) < len(workers):
        yield spec_problem("trainer.workers", "found a role twice, allowed: each at most once")


def own_variables(spec: RunSpec) -> Iterator[Problem]:
    """`trainer.env` has none of the variables that the program is given by rltrain."""
    for index, variable in enumerate(spec.trainer.env):
        if variable.name.startswith(OWN_VARIABLES):
            yield spec_problem(
                f"trainer.env[{index}].name",
                f"found {variable.name!r}, allowed: a name that does not begin with "
                f"{' or '.join(OWN_VARIABLES)}, as rltrain sets those",
            )


def no_warm_start(spec: RunSpec) -> Iterator[Problem]:
    """`warmStart` is set with `trainer.kind` rltrain only."""
    kind = spec.trainer.kind
    if spec.warm_start is not None and kind != "rltrain":
        yield spec_problem(
            "warmStart",
            f"found an object, allowed: null with trainer.kind {kind}, as only rltrain has a warm start",
            "trainer.kind",
        )


def own_code(spec: RunSpec) -> Iterator[Problem]:
    """`task.secrets` and `task.isolation` strict are set with `trainer.kind` rltrain only."""
    kind, task = spec.trainer.kind, spec.given_task
    if kind == "rltrain" or task is None:
        return
    if task.isolation == "strict":
        yield spec_problem(
            "task.isolation",
            f"found 'strict', allowed: 'shared' with trainer.kind {kind}, whose program runs the task's code itself, beside "
            "the tokens of the run",
            "trainer.kind",
        )
    if task.secrets:
        yield spec_problem(
            "task.secrets",
            f"found a list, allowed: an empty list with trainer.kind {kind}, whose program has spec.secrets in all pods",
            "trainer.kind",
        )


def isolated(spec: RunSpec) -> Iterator[Problem]:
    """With `task.isolation` strict `algorithm.name` is no objective of your own; `task.resources` is set with it only."""
    task, objective = spec.given_task, spec.algorithm.own_objective
    if task is None:
        return
    if task.isolation == "strict" and objective is not None:
        yield spec_problem(
            "algorithm.name",
            f"found {objective!r}, allowed with task.isolation strict: a named algorithm, as an objective of your own runs "
            "in the learners, beside the tokens of the run",
            "task.isolation",
        )
    if task.isolation != "strict" and task.resources is not None:
        yield spec_problem(
            "task.resources",
            f"found an object, allowed: null with isolation {task.isolation}, as only strict has a container of its own",
            "task.isolation",
        )


TRAINER_RULES: Final = (
    model_and_task,
    program,
    of_other_kinds,
    workers_once,
    own_variables,
    no_warm_start,
    own_code,
    isolated,
)
"""Rules of `spec.trainer`."""
