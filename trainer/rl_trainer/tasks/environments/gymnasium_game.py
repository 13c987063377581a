"""Environments of the Gymnasium library as dialogues: an observation is text, and a turn of the model is an action.

    observation  0            what `env.reset` gives, as text; the prompt
    model        R            one action: a number of a Discrete space, or its name in task.args.actions
    observation  1            what `env.step` gives
    ...                       until the episode is terminated or truncated, or task.maxTurns is reached

The reward is the sum of what the steps give (rule task).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from rl_api.errors import TaskError
from rl_trainer.tasks.environments.base import EnvironmentClass
from rl_trainer.tasks.environments.episode import NOISE
from rl_trainer.tasks.functions import load_function, look_first_in
from rl_trainer.tasks.types import StepResult
from rl_trainer.tasks.user_code import Environments

RANDOM_TURNS: Final = 8
"""Turns of the random play that a warm start shows, where there is no better one."""

_MOST_NUMBERS: Final = 64
_FUNCTIONS: Final = ("instance", "observation", "action", "reward", "solution")
_ALLOWED: Final = ("make", "actions", "precision", "invalid", *_FUNCTIONS)


def gymnasium_environments(name: str, search: Path | None) -> Environments:
    """The dialogues with the environment `name`, such as FrozenLake-v1 or module:MyGame-v0.

    Raises TaskError: there is no such environment, or no Gymnasium.
    """
    return Environments(cast(type[EnvironmentClass], Games(name, search)))


class Games:
    """Makes the dialogues with one environment of Gymnasium; as a class of an environment would."""

    def __init__(self, name: str, search: Path | None) -> None:
        try:
            import gymnasium
        except ImportError:
            raise TaskError(
                "task.environment: gymnasium needs the package gymnasium; install rltrain[gymnasium]"
            ) from None
        if search is not None:
            look_first_in(search.resolve(), name.partition(":")[0])
        try:
            gymnasium.spec(name)
        except (gymnasium.error.Error, ImportError) as error:
            raise TaskError(f"task.name: {name} is no environment of Gymnasium ({_line(error)})") from None
        self._name, self._search, self._make = name, search, gymnasium.make

    def __call__(self, item: Mapping[str, Any], args: Mapping[str, Any]) -> Game:
        """The dialogue about one item."""
        found = self._functions(args)
        options = {**args.get("make", {}), **item.get("make", {})}
        try:
            env = self._make(self._name, disable_env_checker=True, **options)
        except Exception as error:  # whatever the environment says of its arguments
            raise TaskError(
                f"task.args.make: {self._name} cannot be made with {options!r:.200} ({type(error).__name__}: {_line(error)})"
            ) from None
        return Game(env, item, args, found)

    def generate(self, rng: random.Random, args: Mapping[str, Any]) -> dict[str, Any]:
        """A seed for `env.reset`, and what `task.args.instance` draws for `gymnasium.make`."""
        instance = self._functions(args).get("instance")
        seed = rng.getrandbits(31)
        return {"seed": seed, "make": dict(instance(rng)) if instance is not None else {}}

    def solution(self, item: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
        """The turns of `task.args.solution`; without it random actions, which show what a turn looks like."""
        game = self(item, args)
        game.reset()
        own = self._functions(args).get("solution")
        try:
            return [str(turn) for turn in own(game.env)] if own is not None else game.random_play()
        finally:
            game.close()

    def _functions(self, args: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
        for name, value in args.items():
            if name not in _ALLOWED:
                raise TaskError(
                    f"task.args.{name}: environment gymnasium has no such argument; it has {', '.join(_ALLOWED)}"
                )
            wrong = _wrong(name, value)
            if wrong:
                raise TaskError(f"task.args.{name}: found {value!r:.60}, allowed: {wrong}")
        return {
            name: load_function(args[name], self._search, f"task.args.{name}")
            for name in _FUNCTIONS
            if args.get(name) is not None
        }


class Game:
    """One episode; see the module.

    Args:
        env: what `gymnasium.make` gives.
        item: {"seed": of the reset, "noise": of the chance afterwards}.
        args: `task.args`.
        functions: the user's, by the names of arguments.
    """

    def __init__(
        self,
        env: Any,
        item: Mapping[str, Any],
        args: Mapping[str, Any],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self.env, self._item = env, item
        self._precision, self._invalid = int(args.get("precision", 2)), float(args.get("invalid", 0.0))
        self._reward = functions.get("reward")
        self._names = list(args.get("actions", ()))
        self._observe = functions.get("observation") or self._written()
        self._act = functions.get("action") or self._read()
        self._last = ""

    def reset(self) -> str:
        """The first observation, which follows from the item's seed."""
        observation, info = self.env.reset(seed=int(self._item["seed"]))
        if NOISE in self._item:
            self.env.unwrapped.np_random = np.random.Generator(np.random.PCG64(int(self._item[NOISE])))
        self._last = self._text(observation, info)
        return self._last

    def step(self, completion: str) -> StepResult:
        """Carries one action out. What is no action changes nothing, earns `invalid`, and is answered with `?` before the
        last observation."""
        try:
            action = self._act(completion, self.env)
        except ValueError:
            return StepResult(f"?{self._last}", reward=self._invalid)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._last = self._text(observation, info)
        earned = self._reward(reward, observation, info) if self._reward else reward
        return StepResult(self._last, float(earned), bool(terminated or truncated))

    def close(self) -> None:
        """Gives back what the environment holds."""
        self.env.close()

    def random_play(self) -> list[str]:
        """At most `RANDOM_TURNS` actions drawn evenly. TaskError: what an action looks like is the user's to say."""
        self.env.action_space.seed(int(self._item["seed"]))
        turns: list[str] = []
        while len(turns) < RANDOM_TURNS:
            turns.append(self._said(self.env.action_space.sample()))
            if self.step(turns[-1]).done:
                break
        return turns

    def _said(self, action: Any) -> str:
        space = self.env.action_space
        if not hasattr(space, "start") or getattr(self._act, "__self__", None) is not self:
            raise TaskError(
                f"warmStart: actions of {space!r:.60} are not written by themselves; set task.args.solution, a function "
                "(env) -> list of turns, or leave warmStart out"
            )
        number = int(action)
        return self._names[number - int(space.start)] if self._names else str(number)

    def _text(self, observation: Any, info: Mapping[str, Any]) -> str:
        text = self._observe(observation, info, self.env)
        if not isinstance(text, str):
            raise TaskError(f"task.args.observation: it returned {text!r:.60}, allowed: text")
        return text

    def _written(self) -> Callable[[Any, Any, Any], str]:
        """The observation as numbers, where there are few."""
        size = _numbers(self.env.observation_space)
        if size is None or size > _MOST_NUMBERS:
            raise TaskError(
                f"task.args.observation: missing, required as observations are {self.env.observation_space!r:.120}: "
                "module:function, called with (observation, info, env), that returns text"
            )
        return lambda observation, info, env: " ".join(self._number(value) for value in _flat(observation))

    def _number(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, int | np.integer | np.bool_):
            return str(int(value))
        text = f"{float(value):.{self._precision}f}"
        return text[1:] if text.startswith("-") and not float(text) else text  # -0.00

    def _read(self) -> Callable[[str, Any], Any]:
        space = self.env.action_space
        kind = type(space).__name__
        if kind == "Discrete":
            if self._names and len(self._names) != int(space.n):
                raise TaskError(
                    f"task.args.actions: found {len(self._names)} names, allowed: one for each of the {int(space.n)} actions"
                )
            return self._one_of
        if kind in ("Box", "MultiDiscrete") and (_numbers(space) or math.inf) <= _MOST_NUMBERS:
            if not self._names:
                return self._several
            raise TaskError(f"task.args.actions: found names, allowed: none, as actions are {space!r:.60}")
        raise TaskError(
            f"task.args.action: missing, required as actions are {space!r:.120}: module:function, called with (the "
            "model's turn, env), that returns an action or raises ValueError"
        )

    def _one_of(self, completion: str, env: Any) -> int:
        space = env.action_space
        word = completion.strip()
        if self._names:
            return int(space.start) + self._names.index(word)
        number = int(word)
        if not int(space.start) <= number < int(space.start) + int(space.n):
            raise ValueError
        return number

    def _several(self, completion: str, env: Any) -> Any:
        space = env.action_space
        values = [float(word) for word in completion.replace(",", " ").split()]
        if len(values) != int(np.prod(space.shape)) or not all(map(math.isfinite, values)):
            raise ValueError
        action = np.asarray(values).astype(space.dtype).reshape(space.shape)
        if not space.contains(action):
            raise ValueError
        return action


def _numbers(space: Any) -> int | None:
    """How many values an observation or action of this space has; None: it is none of numbers and texts."""
    kind = type(space).__name__
    if kind in ("Discrete", "Text"):
        return 1
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        return int(np.prod(space.shape))
    if kind in ("Tuple", "Dict"):
        inner = space.spaces.values() if kind == "Dict" else space.spaces
        sizes = [_numbers(one) for one in inner]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    return None


def _flat(observation: Any) -> list[Any]:
    if isinstance(observation, Mapping):
        return [value for one in observation.values() for value in _flat(one)]
    if isinstance(observation, tuple | list):
        return [value for one in observation for value in _flat(one)]
    if isinstance(observation, np.ndarray):
        return list(observation.reshape(-1))
    return [observation]


def _wrong(name: str, value: Any) -> str | None:
    """What is allowed for an argument, where this is not."""
    if name == "make" and not isinstance(value, Mapping):
        return "an object, the arguments of gymnasium.make"
    if name == "make" and value.get("render_mode") == "human":
        return "an object without render_mode: human, as nobody looks on"
    if name == "actions" and not (
        isinstance(value, str | list | tuple) and value and all(isinstance(one, str) and one for one in value)
    ):
        return "names of the actions, in order: a list of texts, or a text with a character for each"
    if name == "actions" and len(set(value)) < len(value):
        return "names of the actions, each of which there is once"
    if name == "precision" and (type(value) is not int or not 0 <= value <= 9):
        return "a whole number from 0 to 9"
    if name == "invalid" and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ):
        return "a finite number"
    if name in _FUNCTIONS and not isinstance(value, str):
        return "module:function"
    return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
