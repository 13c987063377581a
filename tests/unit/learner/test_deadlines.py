"""How long the driver waits for learners: longer for a larger model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from rl_api import RunSpec
from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.state import SavedLearners
from rl_trainer.flow.turns import Turn
from rl_trainer.flow.worker_group import Handle
from rl_trainer.learner.group import Learners
from rl_trainer.model.shared_folder import SharedFolder

GB = 10**9


def shared(size: int) -> SharedFolder:
    return SharedFolder(Path("folder"), "node", "", (), size)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Phases and seconds that the driver has waited for at most."""
    found: list[tuple[str, float]] = []

    def wait(handle: Handle, phase: str, timeout: float, *more: object, **options: object) -> list[Any]:
        found.append((phase, timeout))
        return [([], [])] * len(handle.calls)

    monkeypatch.setattr(Handle, "wait", wait)
    return found


@pytest.fixture
def learners() -> Learners:
    return Learners([MagicMock()], RunSpec.model_validate({"weightSync": {"timeout": "2m"}}))


def test_a_large_folder_may_take_longer_to_load(learners: Learners, waits: list[tuple[str, float]]):
    learners.start(shared(100 * GB))
    saved = SavedLearners(Path("folder"), ("moments",), 3)
    learners.restore(saved, {"optimizer": shared(200 * GB)}, shared(100 * GB), [None])
    assert waits == [("loading the model", 300 + 2000), ("restoring the optimizer", 3600 + 6000)]


def test_publishing_names_the_field_of_its_deadline(learners: Learners, waits: list[tuple[str, float]]):
    learners.start(shared(100 * GB))
    learners.publish(1)
    assert waits[1] == (
        "publishing weights (weightSync.timeout is 120 s, the rest is for the model's 100.0 GB)",
        120 + 500,
    )


@pytest.mark.parametrize(
    ("placement", "moved"),
    [
        ({"mode": "hybrid", "sharedSamplers": 1}, [1, 0, 0]),
        ({"mode": "disaggregated"}, [1, 1, 1]),  # as `rltrain profile` tries, to know what sharing would take
    ],
)
def test_learners_whose_devices_samplers_share_move_their_tensors(
    waits: list[tuple[str, float]], placement: dict[str, object], moved: list[int]
):
    actors = [MagicMock() for _ in range(3)]
    spec = {
        "placement": placement,
        "learner": {"replicas": 3},
        "sampler": {"replicas": 2},
    }
    learners = Learners(actors, RunSpec.model_validate(spec))
    for move in ("offload", "onload"):
        with suppress(TypeError):  # the fixture's results are no numbers
            getattr(learners, move)()
        assert [getattr(actor, move).remote.call_count for actor in actors] == moved


def test_a_checkpoint_that_fails_is_given_up_before_learners_leave_their_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """They do not leave while it is read."""
    order: list[str] = []

    class Turns:
        @contextmanager
        def taken(self, phase: str, *_: object) -> Iterator[str]:
            try:
                yield phase
            finally:
                order.append("leave")

    def fail(*_: object) -> None:
        raise CheckpointError("the disk is full")

    actor = MagicMock()
    actor.drop_save.remote.side_effect = lambda number: order.append("give up")
    monkeypatch.setattr(Handle, "wait", fail)
    learners = Learners([actor], RunSpec(), turn=cast(Turn, Turns()))
    with pytest.raises(CheckpointError):
        learners.write(tmp_path, {"weights": "model"})
    assert order == ["give up", "leave"]


def test_learners_load_in_a_turn_where_samplers_share_their_devices(monkeypatch: pytest.MonkeyPatch):
    """Samplers load on the same devices, each when it has a lease."""
    order: list[str] = []

    class Turns:
        @contextmanager
        def taken(self, phase: str, *_: object) -> Iterator[str]:
            order.append(f"claim for {phase}")
            yield phase
            order.append("give back")

    actor = MagicMock()
    actor.start.remote.side_effect = lambda *_: order.append("start")
    monkeypatch.setattr(Handle, "wait", lambda *_, **__: order.append("wait"))
    Learners([actor], RunSpec(), turn=cast(Turn, Turns())).start(shared(GB))
    assert order == ["claim for loading the model", "start", "wait", "give back"]
