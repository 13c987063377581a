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
from rl_trainer.buffer import actor as buffer_actor
from rl_trainer.buffer.actor import BufferActor
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.flow.calls import MEANWHILE_SECONDS
from rl_trainer.flow.pulse import START_SECONDS, Pulse, Watch
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
        """`said`: by the buffer, of actors that have given signs of life before, or an error; None: it does not answer."""
        heard = dict.fromkeys(said, True) if isinstance(said, list) else said
        self.now, self.said = self.now + after, heard
        return set(self.watch.look())


class Knows(Watch):
    """Knows who is silent."""

    def __init__(self, *names: str):
        super().__init__(Pulse(None, LIMIT))
        self.names = frozenset(names)

    def look(self) -> frozenset[str]:
        return self.names


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
    watch = Knows("learner 1", "sampler 0")
    with pytest.raises(
        DeadlineExceeded,
        match=r"^learner 1: no sign of life for 60 s \(retry.livenessTimeout\) while training",
    ):
        Handle("learner", {0: "zero", 1: "one"}, watch).wait("training", 5.0)  # type: ignore[dict-item]


def test_a_learner_that_stands_still_is_named_also_where_it_alone_is_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls))
    watch = Knows("learner 0")
    actor = SimpleNamespace(broadcast_failure=SimpleNamespace(remote=lambda: "call"))
    with pytest.raises(
        DeadlineExceeded, match=r"^learner 0: no sign of life .* while looking at a broadcast"
    ):
        Learners([actor], RunSpec.model_construct(), watch=watch).broadcast_failure()


def test_learners_that_load_do_not_wait_for_a_sampler_that_stands_still(monkeypatch: pytest.MonkeyPatch):
    """On one node it may be the one that copies the model for all of them."""
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls))
    watch = Knows("sampler 1")
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
        assert await actor.silent(-1.0) == {"sampler 0": True, "learner 0": True}
        assert await actor.silent(LIMIT) == {}
        await actor.release(0)
        assert await actor.silent(-1.0) == {"learner 0": True}

    asyncio.run(story())


def test_who_has_never_given_a_sign_of_life_is_silent_some_time_after_the_launch(
    monkeypatch: pytest.MonkeyPatch,
):
    now = 0.0
    monkeypatch.setattr(buffer_actor, "time", SimpleNamespace(monotonic=lambda: now))

    async def story() -> None:
        nonlocal now
        actor = BufferActor(BufferConfig(1, max_staleness=0, samplers=1))
        for name in ("sampler 0", "learner 0", "learner 1"):
            await actor.expect(name, START_SECONDS)
        await actor.beat("learner 1")
        now = LIMIT + 1
        assert await actor.silent(LIMIT) == {"learner 1": True}, "the others may be starting yet"
        await actor.beat("learner 1")
        now = START_SECONDS + LIMIT + 1
        assert await actor.silent(LIMIT) == {"sampler 0": False, "learner 0": False}
        await actor.release(0)
        await actor.beat("learner 0")
        assert await actor.silent(-1.0) == {"learner 1": True, "learner 0": True}
        await actor.expect("sampler 0", START_SECONDS)  # its successor
        assert "sampler 0" not in await actor.silent(-1.0)

    asyncio.run(story())


def test_it_is_said_of_whom_no_sign_of_life_has_ever_come(asked: Asked):
    for _ in range(2):
        named = asked.look(said={"learner 0": True, "learner 1": False})
    assert named == {"learner 0", "learner 1"}
    assert asked.watch.silence("learner 0", "loading the model").startswith(
        "learner 0: no sign of life for 60 s (retry.livenessTimeout) while loading the model; "
    )
    assert asked.watch.silence("learner 1", "loading the model").startswith(
        "learner 1: not one sign of life since it was launched, more than 120 s ago (retry.livenessTimeout, and 60 s to "
        "start) while loading the model; its process is stopped or hangs"
    )


def test_learners_are_expected_before_their_processes_are_there(monkeypatch: pytest.MonkeyPatch):
    happened: list[tuple[Any, ...]] = []
    buffer = SimpleNamespace(expect=SimpleNamespace(remote=lambda *told: happened.append(told)))
    remote = SimpleNamespace(remote=lambda rank, *_: happened.append(("launched", rank)))
    monkeypatch.setattr(ray, "remote", lambda _: SimpleNamespace(options=lambda **_: remote))
    reservation: Any = SimpleNamespace(options=lambda name: {})
    spec = RunSpec.model_validate(
        {"model": {"source": "tiny"}, "task": {"environment": "reasoning-gym", "name": "chain_sum"}}
        | {"learner": {"replicas": 2}}
    )
    Learners.launch(spec, reservation, watch=Watch(Pulse(buffer, LIMIT)))
    assert happened == [
        *(("learner 0", START_SECONDS), ("learner 1", START_SECONDS)),
        *(("launched", 0), ("launched", 1)),
    ]


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
