"""Classes of actors that are imported where the actor runs only."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from rl_trainer.flow.named_class import named_class

BASE = """
class Base:
    def first(self):
        return "first"
    def replaced(self):
        return "base"
"""
MODULE = """
from named_class_base import Base as TheBase

class Inner:
    pass

class Counter(TheBase, Inner):
    limit = 3
    def __init__(self, start, step=1):
        self.value, self.step = start, step
    def add(self, times, *, twice=False):
        for _ in range(times * (2 if twice else 1)):
            self._add()
        return self.value
    def replaced(self):
        return "own"
    def each(self, times):
        for _ in range(times):
            yield self.add(1)
    def _add(self):
        self.value += self.step

class Waits:
    async def wait(self):
        pass

class Odd(dict):
    pass
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_class_base.py").write_text(BASE)
    (tmp_path / "named_class_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("named_class_base", "named_class_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_module_is_imported_with_the_first_object() -> None:
    found: Any = named_class("named_class_module", "Counter")
    assert found.__name__ == "Counter"
    assert {name for name in vars(found) if not name.startswith("_")} == {"add", "each", "first", "replaced"}
    # As Ray sends it to where the actor runs, by value.
    found = ray.cloudpickle.loads(ray.cloudpickle.dumps(found))
    assert not {"named_class_base", "named_class_module"} & sys.modules.keys()
    made = found(10, step=5)
    assert "named_class_module" in sys.modules
    assert made.add(1, twice=True) == 20
    # Ray streams what a generator yields, and takes no other method for one.
    assert [one for one in vars(found) if inspect.isgeneratorfunction(vars(found)[one])] == ["each"]
    assert list(made.each(2)) == [25, 30]
    assert (made.first(), made.replaced()) == ("first", "own")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("Nothing", AttributeError, "named_class_module defines no class Nothing"),
        ("Waits", TypeError, r"named_class_module\.Waits\.wait is a coroutine"),
        ("Odd", TypeError, r"named_class_module\.Odd: a base is not found by its name: dict"),
    ],
)
def test_what_cannot_be_handed_on_is_said(name: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        named_class("named_class_module", name)


@pytest.mark.parametrize(
    ("module", "name"),
    [("rl_trainer.learner.actor", "LearnerActor"), ("rl_trainer.rollout.actor", "SamplerActor")],
)
def test_the_actors_of_a_run_are_whole(module: str, name: str) -> None:
    real = getattr(sys.modules.get(module) or __import__(module, fromlist=[name]), name)
    public = {
        method for method in dir(real) if not method.startswith("_") and callable(getattr(real, method))
    }
    assert {method for method in vars(named_class(module, name)) if not method.startswith("_")} == public
