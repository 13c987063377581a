"""What the tutorial of the loop does where its workers have nothing to do, or fail."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "tutorials"


class Leases:
    """A desk that gives whoever asks what it asks for."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def __getattr__(self, name: str) -> Any:
        return type("Method", (), {"remote": lambda *_: self._said.append(name)})


class Left:
    """A channel that nobody puts anything into."""

    def leave(self) -> None:
        """Nothing more is wanted."""


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Those of the tutorial; Ray's answers are there at once."""
    monkeypatch.syspath_prepend(str(FOLDER))
    found = runpy.run_path(str(FOLDER / "15_loop.py"))
    monkeypatch.setattr(found["ray"], "get", lambda reference, timeout: 1)
    yield found
    sys.modules.pop("show", None)


@pytest.mark.parametrize("shared", [False, True])
def test_a_learner_without_a_share_learns_nothing(names: dict[str, Any], shared: bool):
    learner = names["Learner"].__ray_metadata__.modified_class("learner 0", 0, Leases([]), 1)
    learner.place(shared)
    assert learner.learn(0, Left()) == 0


def test_a_worker_that_fails_leaves_no_tensors_on_a_shared_device(names: dict[str, Any]):
    said: list[str] = []
    stage = names["Stage"]("sampler 0", 0, Leases(said), 1)
    stage.place(True)
    with pytest.raises(ZeroDivisionError), stage._turn():
        assert not stage._offloader.away
        raise ZeroDivisionError
    assert stage._offloader.away
    assert said == ["claim", "give_back"]
