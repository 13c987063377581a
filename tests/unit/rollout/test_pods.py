"""An engine that is in several pods, without Ray and vLLM: who waits for whom, and who goes with whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_api.errors import ModelError, RLTrainError
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.rollout import pods
from rl_trainer.rollout.engines.vllm_needs import Pods, VllmOptions

FOLDER = SharedFolder(Path("/model"), "node", "key", (), 0)
ENGINE: Any = object()
Open = Callable[[Callable[[VllmOptions], Any]], Any]


class Others:
    """The other pods: what has become of them, and what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, VllmOptions]] = []
        self.error: RLTrainError | None = None
        self.watched = False
        self.gone, self.ended = threading.Event(), threading.Event()

    def start(self, bundles: tuple[int, ...], model: Any, slots: int, dtype: Any, options: Any) -> list[Any]:
        self.told = [(bundle, options) for bundle in bundles]
        return list(bundles)

    def lost(self, calls: list[Any], name: str, timeout: float | None) -> RLTrainError | None:
        return self.error if self.gone.wait(None if timeout is None else 0.001) else None


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    made = Others()
    monkeypatch.setattr(pods, "_start", made.start)
    monkeypatch.setattr(pods, "_lost", made.lost)
    monkeypatch.setattr(pods.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(pods.os, "_exit", lambda status: made.ended.set())
    yield made
    made.gone.set()
    assert not made.watched or made.ended.wait(10.0), "else it would end the tests' own process"


@pytest.fixture
def opened(others: Others) -> Open:
    options = VllmOptions(1, 2)

    def open_it(open_here: Callable[[VllmOptions], Any]) -> Any:
        engine = pods.open_over_pods("sampler 3", (4,), FOLDER, 8, torch.float32, options, open_here)
        others.watched = True
        return engine

    return open_it


def test_all_parts_know_where_they_meet(others: Others, opened: Open) -> None:
    asked: list[VllmOptions] = []
    assert opened(lambda options: asked.append(options) or ENGINE) is ENGINE
    found = asked[0].pods
    assert isinstance(found, Pods)
    assert (found.count, found.rank, found.host, found.first) == (2, 0, "127.0.0.1", "127.0.0.1")
    assert others.told == [(4, asked[0])]


def test_a_pod_that_cannot_open_its_part_is_not_waited_for(others: Others, opened: Open) -> None:
    never = threading.Event()
    others.error = ModelError("pod 1 of 2: no room")
    others.gone.set()
    with pytest.raises(ModelError, match="pod 1 of 2: no room"):
        opened(lambda options: never.wait(10.0))
    never.set()


def test_what_the_engine_says_is_raised(opened: Open) -> None:
    def fail(options: VllmOptions) -> Any:
        raise ModelError("no such folder")

    with pytest.raises(ModelError, match="no such folder"):
        opened(fail)


def test_the_engine_ends_with_its_other_pods(
    others: Others, opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opened(lambda options: ENGINE) is ENGINE
    assert not others.ended.is_set()
    others.error = ModelError("a worker of vLLM died")
    others.gone.set()
    assert others.ended.wait(10.0)
    assert capsys.readouterr().err == "sampler 3: a worker of vLLM died\n"
