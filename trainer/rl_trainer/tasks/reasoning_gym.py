"""Prompts from the generators of the reasoning-gym library.

The library takes 3 seconds of CPU to import, so it is imported when the first task is made, never before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import random
import sys
import types
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from rl_api.errors import TaskError
from rl_trainer.tasks.guards import guard_scorers, may_be_scored
from rl_trainer.tasks.split import BLOCK, derive_seed

HASH_ORDERED = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
"""Generators that go through sets of texts, which each process orders differently unless PYTHONHASHSEED=0."""

# Blocks kept: those of two streams, and the next one of each.
_CACHED_BLOCKS = 4


class ReasoningGym:
    """One generator: its name in the library, such as chain_sum, and its arguments.

    Raises TaskError for an unknown generator or wrong arguments, or when the library is not installed.
    """

    def __init__(self, name: str, args: Mapping[str, Any]) -> None:
        self.name = name
        self._factory = _import_library()
        if name not in self._factory.DATASETS:
            raise TaskError(
                f"task.name: reasoning-gym has no generator {name!r}{_nearest(name, self._factory.DATASETS)}"
            )
        self._check_hash_order(args)
        self._args = self._checked(args)
        self._blocks: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._scorer = self._make(0)

    def draw(self, stream: int, position: int) -> dict[str, Any]:
        """The entry (question, answer, metadata) at a position of a stream; TaskError when the generator failed."""
        number, place = divmod(position, BLOCK)
        key = (stream, number)
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = self._make(derive_seed(stream, number))
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        try:
            with _fixed_global_random(derive_seed(stream, position, "entry")):
                entry = block[place]
        except Exception as error:
            raise TaskError(
                f"task.args: generator {self.name} failed to make a prompt: {type(error).__name__}: {error}"
            ) from error
        return dict(entry)

    def score(self, entry: Mapping[str, Any], completion: str) -> float:
        """The library's own score of a completion, from 0 to 1.

        A few of the library's scorers raise on an answer that they cannot read; that is a wrong answer, so 0.
        So is one that must not be shown to the scorer (see `guards`).
        """
        source = (entry.get("metadata") or {}).get("source_dataset", self.name)
        if not may_be_scored(source, completion):
            return 0.0
        try:
            return float(self._scorer.score_answer(completion.strip(), dict(entry)))
        except Exception:
            return 0.0

    def _make(self, seed: int) -> Any:
        try:
            with _fixed_global_random(derive_seed(seed, "block")):
                return self._factory.create_dataset(self.name, seed=seed, size=BLOCK, **self._args)
        except (AssertionError, TypeError, ValueError, KeyError, AttributeError, LookupError) as error:
            reason = str(error) or type(error).__name__
            raise TaskError(f"task.args: generator {self.name} refuses its arguments: {reason}") from error

    def _checked(self, args: Mapping[str, Any]) -> dict[str, Any]:
        config = self._factory.DATASETS[self.name][1]
        allowed = [field.name for field in dataclasses.fields(config) if field.name not in ("seed", "size")]
        for key in args:
            if key == "seed":
                raise TaskError("task.args.seed: not allowed, as prompts follow the run's seed (spec.seed)")
            if key == "size":
                raise TaskError(
                    "task.args.size: not allowed, as prompts never end; stop.maxSteps ends the run"
                )
            if key not in allowed:
                raise TaskError(
                    f"task.args.{key}: generator {self.name} has no such argument{_nearest(key, allowed)}"
                )
        checked = dict(args)
        if self.name == "composite":
            checked["datasets"] = self._parts(args.get("datasets"))
        return checked

    def _parts(self, datasets: Any) -> list[Any]:
        if not isinstance(datasets, list) or not datasets:
            raise TaskError(
                "task.args.datasets: generator composite needs a list of {name, weight, config}, "
                f"found {datasets!r}"
            )
        spec = importlib.import_module("reasoning_gym.composite").DatasetSpec
        parts = []
        for number, part in enumerate(datasets):
            path = f"task.args.datasets[{number}]"
            if not isinstance(part, Mapping) or not set(part) <= {"name", "weight", "config"}:
                raise TaskError(f"{path}: found {part!r}, allowed: a mapping with name, weight and config")
            name = part.get("name")
            if name not in self._factory.DATASETS or name == "composite":
                raise TaskError(
                    f"{path}.name: reasoning-gym has no generator {name!r}"
                    f"{_nearest(str(name), self._factory.DATASETS)}"
                )
            parts.append(spec(name=name, weight=part.get("weight", 1), config=dict(part.get("config") or {})))
        return parts

    def _check_hash_order(self, args: Mapping[str, Any]) -> None:
        parts = args.get("datasets") if self.name == "composite" else None
        names = [self.name, *(part.get("name") for part in parts or () if isinstance(part, Mapping))]
        for name in names:
            if name in HASH_ORDERED and sys.flags.hash_randomization:
                raise TaskError(
                    f"task.name: generator {name} gives other prompts in every Python process unless "
                    "PYTHONHASHSEED is 0; start with PYTHONHASHSEED=0 in the environment (on every node)"
                )


def _nearest(name: str, allowed: Any) -> str:
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, 3, 0.5)
    if close:
        return f"; nearest: {', '.join(close)}"
    return f"; it has {', '.join(names)}" if names else ""


@contextlib.contextmanager
def _fixed_global_random(seed: int) -> Iterator[None]:
    """A few generators draw from Python's global generator, whose state must neither matter nor change."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _import_library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in its sources
            if "reasoning_gym" not in sys.modules:
                _import_cellpylib_without_plots()
            importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise TaskError(
            f"task.environment: reasoning-gym cannot be imported ({error}); install rltrain[trainer]"
        ) from None
    compiler = sys.modules.get("reasoning_gym.code.contrib.bfit.Compiler.Optimizer")
    if compiler is not None:  # generator bf: prints a dot per program
        vars(compiler)["print"] = lambda *_, **__: None
    factory = importlib.import_module("reasoning_gym.factory")
    guard_scorers(factory.DATASETS)
    return factory


class _Unused(types.ModuleType):
    """Stands for a module that is imported but never used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def _import_cellpylib_without_plots() -> None:
    """The two game_of_life generators import a library that imports matplotlib, only to offer plots.

    That is a third of the import time, in every process, and on a fresh machine matplotlib first builds its
    font cache.
    """
    if "matplotlib" in sys.modules or "cellpylib" in sys.modules:
        return
    names = ["matplotlib", "mpl_toolkits"]
    names += [f"matplotlib.{name}" for name in ("pyplot", "animation", "collections")]
    names += ["mpl_toolkits.mplot3d"]
    for name in names:
        sys.modules[name] = _Unused(name)
    try:
        importlib.import_module("cellpylib")
    except Exception:  # it needs more of them than expected: then with the real ones
        for name in [key for key in sys.modules if key.partition(".")[0] == "cellpylib"]:
            del sys.modules[name]
    finally:
        for name in names:
            sys.modules.pop(name, None)
