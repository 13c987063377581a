"""Who stands still is named, and nobody else: not whoever was asked by a driver or a buffer that stood still itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

from rl_api import RunSpec
from rl_api.errors import DeadlineExceeded
from rl_trainer.buffer.actor import BufferActor
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.flow.calls import MEANWHILE_SECONDS
from rl_trainer.flow.pulse import Pulse, Watch
from rl_trainer.flow.worker_group import Handle
from rl_trainer.learner.group import Learners
from rl_trainer.model.shared_folder import SharedFolder

LIMIT = 60.0


class Asked:
    """A buffer that answers when it is told to, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.questions, self.said = 0.0, 0, None
        self.actor = SimpleNamespace(silent=SimpleNamespace(remote=self._ask))
        self.watch = Watch(Pulse(self.actor, LIMIT), lambda: self.now)
        monkeypatch.setattr(
            ray, "wait", lambda calls, **_: (calls, []) if self.said is not None else ([], calls)
        )
        monkeypatch.setattr(ray, "get", self._get)

    def _ask(self, limit: float) -> str:
        assert limit == LIMIT
        self.questions += 1
        return "call"

    def _get(self, call: str, timeout: float) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def look(self, after: float = 10.0, said: Any = None) -> set[str]:
        self.now, self.said = self.now + after, said
        return set(self.watch.look())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_named_is_who_was_silent_at_two_looks(asked: Asked):
    assert asked.look() == set()
    assert asked.look(said=["learner 1", "sampler 0"]) == set()
    assert asked.look() == set()
    assert asked.look(said=["learner 1"]) == {"learner 1"}
    asked.look()
    assert asked.look(said=[]) == set()
    asked.look()
    assert asked.look(said=["learner 1"]) == set()


def test_a_buffer_that_answers_at_once_is_asked_at_every_look(asked: Asked):
    assert asked.look(said=["learner 1"]) == set()
    assert asked.look(said=["learner 1"]) == {"learner 1"}
    assert asked.look(said=[]) == set()
    assert asked.questions == 3


def test_a_buffer_that_does_not_answer_is_silent_itself(asked: Asked):
    assert [asked.look() for _ in range(6)] == [set()] * 6
    assert asked.look() == {"buffer"}
    assert asked.questions == 1


def test_a_driver_that_was_stopped_knows_nothing_of_the_time_meanwhile(asked: Asked):
    asked.look()
    assert asked.look(after=10 * LIMIT) == set()
    assert asked.look(said=[]) == set()


def test_a_buffer_that_died_is_for_others_to_say(asked: Asked):
    asked.look()
    assert asked.look(said=ActorDiedError()) == set()
    assert asked.look() == set()
    assert asked.questions == 2


def test_the_rank_that_stands_still_is_named_and_not_the_one_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls))
    watch = SimpleNamespace(pulse=Pulse(None, LIMIT), look=lambda: frozenset({"learner 1", "sampler 0"}))
    with pytest.raises(
        DeadlineExceeded,
        match=r"^learner 1: no sign of life for 60 s \(retry.livenessTimeout\) while training",
    ):
        Handle("learner", {0: "zero", 1: "one"}, watch).wait("training", 5.0)  # type: ignore[dict-item, arg-type]


def test_a_learner_that_stands_still_is_named_also_where_it_alone_is_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls))
    watch: Any = SimpleNamespace(pulse=Pulse(None, LIMIT), look=lambda: frozenset({"learner 0"}))
    actor = SimpleNamespace(broadcast_failure=SimpleNamespace(remote=lambda: "call"))
    with pytest.raises(
        DeadlineExceeded, match=r"^learner 0: no sign of life .* while looking at a broadcast"
    ):
        Learners([actor], RunSpec.model_construct(), watch=watch).broadcast_failure()


def test_learners_that_load_do_not_wait_for_a_sampler_that_stands_still(monkeypatch: pytest.MonkeyPatch):
    """On one node it may be the one that copies the model for all of them."""
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls))
    watch: Any = SimpleNamespace(pulse=Pulse(None, LIMIT), look=lambda: frozenset({"sampler 1"}))
    actor = SimpleNamespace(start=SimpleNamespace(remote=lambda *_: "call"))
    learners = Learners([actor], RunSpec.model_construct(), watch=watch)
    with pytest.raises(DeadlineExceeded, match=r"^sampler 1: no sign of life .* while loading the model"):
        learners.start(SharedFolder(Path("model"), "", "", (), 0), ["sampler 0", "sampler 1"])


def test_where_nobody_is_silent_all_who_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch):
    def get(call: object, timeout: float) -> None:
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls))
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(DeadlineExceeded, match=r"^learner 0, learner 1: no answer after"):
        Handle("learner", {0: "zero", 1: "one"}).wait("training", 0.0)  # type: ignore[dict-item]


def test_a_sampler_that_was_given_up_is_not_silent_while_another_loads():
    async def story() -> None:
        actor = BufferActor(BufferConfig(1, max_staleness=0, samplers=1))
        await actor.beat("sampler 0")
        await actor.beat("learner 0")
        assert await actor.silent(-1.0) == ["sampler 0", "learner 0"]
        assert await actor.silent(LIMIT) == []
        await actor.release(0)
        assert await actor.silent(-1.0) == ["learner 0"]

    asyncio.run(story())


def test_what_is_told_is_heard_once_the_buffer_answers(asked: Asked):
    asked.actor.told = SimpleNamespace(remote=lambda: "told")
    assert asked.watch.told() == {}
    asked.said = {"learner 0": 1}
    assert asked.watch.told() == {"learner 0": 1}
    asked.said = ActorDiedError()
    assert asked.watch.told() == {}, "who needs the buffer says that it has died"

    async def tell() -> None:
        actor = BufferActor(BufferConfig(groups_per_step=1))
        for said in (1, 2):
            await actor.tell("learner 0", said)
        assert await actor.told() == {"learner 0": 2}

    asyncio.run(tell())


def test_something_else_is_seen_to_while_calls_are_awaited(monkeypatch: pytest.MonkeyPatch):
    waits, looks = list[float](), iter([True, True, False])

    def wait(calls: list[str], timeout: float) -> tuple[list[str], list[str]]:
        waits.append(timeout)
        return (calls, []) if len(waits) == 4 else ([], calls)

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda call, timeout: call)
    handle = Handle("learner", {0: "zero"})  # type: ignore[dict-item]
    assert handle.wait("training", 90.0, lambda: next(looks)) == ["zero"]
    assert waits[:2] == [MEANWHILE_SECONDS] * 2
    assert min(waits[2:]) > 60.0, "nothing is left to look for"
