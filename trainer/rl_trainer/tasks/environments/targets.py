"""Where the class of an environment is found, and the process in which its dialogues live."""

from __future__ import annotations

import difflib
from pathlib import Path

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks.answers import CallError
from rl_trainer.tasks.environments import BUILT_IN
from rl_trainer.tasks.environments.gymnasium_game import gymnasium_environments
from rl_trainer.tasks.killable import KillableProcess, LocalTarget, RemoteTarget, Target
from rl_trainer.tasks.user_code import Environments


def environment_target(spec: TaskSpec, search: Path | None, process: KillableProcess) -> Target:
    """The class that `task.name` names, and its dialogues. Our own returns in any case; others live in `process`.

    `search`: folder looked in first for modules. Raises TaskError: there is none, or it cannot be loaded.
    """
    name = spec.name or ""
    if spec.environment == "gymnasium":
        return _made(name, process.target(gymnasium_environments, name, search))
    if ":" in name:
        return _made(name, process.target(Environments, (name, search)))
    if name in BUILT_IN:
        return LocalTarget(Environments(BUILT_IN[name](search)))
    close = difflib.get_close_matches(name, BUILT_IN, 1, 0.5)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise TaskError(
        f"task.name: found {name!r}, allowed: {', '.join(sorted(BUILT_IN))}, or a class of yours as module:Class{hint}"
    )


def _made(name: str, target: RemoteTarget) -> RemoteTarget:
    try:
        target.make()
    except CallError as error:
        raise TaskError(f"task.name: {name} {error.text} while it is loaded") from None
    return target
