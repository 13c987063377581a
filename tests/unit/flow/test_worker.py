"""Groups of workers, their handles, and the way by which a value goes from one worker to another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch

from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.flow import parcels as module
from rl_trainer.flow.calls import DEATH_SECONDS, INLINE_BYTES
from rl_trainer.flow.parcels import Desk, size_of
from rl_trainer.flow.ways import choose_way, travelled
from rl_trainer.flow.worker import Worker
from rl_trainer.flow.worker_group import Handle, Stream, WorkerGroup


class Actor:
    """In place of Ray's handle to an actor: a call is what it was called with."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *args, **named: (self._name, method, *args, *named.items()))


def test_a_group_calls_all_of_its_workers_or_one_and_names_them_by_rank(monkeypatch: pytest.MonkeyPatch):
    group = WorkerGroup("sampler", {0: Actor("a"), 3: Actor("b")})
    assert group.all("begin", 1, way="x").calls == {
        0: ("a", "begin", 1, ("way", "x")),
        3: ("b", "begin", 1, ("way", "x")),
    }
    assert group.each("join", [(5,), (6,)]).calls == {0: ("a", "join", 5), 3: ("b", "join", 6)}
    assert group.one(3, "run").call == ("b", "run")
    assert group.offload().calls[3] == ("b", "offload")
    assert group.onload().calls[0] == ("a", "onload")
    with pytest.raises(ValueError, match="zip"):
        group.each("join", [(5,)])
    with pytest.raises(ValueError, match="too many values"):
        group.all("run").call  # noqa: B018 - there are two

    def get(call: object, timeout: float | None) -> None:
        raise ray.exceptions.OutOfMemoryError("Memory on the node was 0.5GB / 0.5GB")

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([calls[-1]], calls[:-1]))
    with pytest.raises(ActorDied, match=r"^sampler 3 died while sampling: the node ran out of memory"):
        group.all("run").wait("sampling", 5.0)


class Company:
    """Others, of whom those of `ends` end, one at each wait; what is done with them."""

    patience = 5.0

    def __init__(self, *ends: int) -> None:
        self.ends, self.done = list(ends), list[Any]()

    @property
    def runs(self) -> dict[Any, int]:
        return {f"run {rank}": rank for rank in self.ends}

    def look(self) -> None:
        self.done.append("look")

    def ended(self, rank: int) -> None:
        self.done.append(("ended", rank))
        self.ends.remove(rank)

    def check_alive(self, ranks: Any, phase: str) -> None:
        self.done.append(("check", list(ranks), phase))


def test_who_is_in_company_is_looked_after_while_others_are_waited_for(monkeypatch: pytest.MonkeyPatch):
    company, waited = Company(1, 2), list[Any]()

    def wait(calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        waited.append((calls, timeout))
        # One of them ends, then nothing comes for as long as they are patient, then the answer.
        return {1: ["run 1"], 2: [], 3: ["call", "run 2"]}[len(waited)], []

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda call, timeout: f"of {call}")
    handle = Handle.of("buffer", "call")  # type: ignore[arg-type]
    assert handle.wait("waiting for groups", 3600.0, company=company) == ["of call"]
    assert waited == [(["call", "run 1", "run 2"], 5.0), *[(["call", "run 2"], 5.0)] * 2]
    assert company.done == ["look", ("ended", 1), "look", ("check", [2], "waiting for groups"), "look"]


def test_a_wait_in_company_has_its_deadline_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls))
    with pytest.raises(DeadlineExceeded, match=r"^buffer: no answer after 0 s while waiting"):
        Handle.of("buffer", "call").wait("waiting", 0.0, company=Company(1))  # type: ignore[arg-type]


class Lives(Actor):
    """One whose calls have options."""

    def __getattr__(self, method: str) -> Any:
        plain = super().__getattr__(method).remote
        return SimpleNamespace(
            options=lambda **given: SimpleNamespace(remote=lambda *args: (*plain(*args), *given.items()))
        )


def test_a_worker_that_ends_is_asked_again_in_its_next_life_or_is_ended_with_what_it_has_not_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    actor = Lives("a")
    group, order = WorkerGroup("simulator", [actor]), list[Any]()
    assert group.again(0, "ready").call == ("a", "ready", ("max_task_retries", -1))
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: order.append((actor, no_restart)))
    monkeypatch.setattr(ray, "wait", lambda calls, timeout: order.append((calls, timeout)))
    stream = group.stream(0, "score", 1)
    assert stream.values == ("a", "score", 1, ("num_returns", "streaming"))
    group.replace(0, stream)
    group.replace(0, Handle.of("simulator 0", "call"))  # type: ignore[arg-type]
    ended = (actor, False)
    assert order == [ended, ([stream.values], DEATH_SECONDS), ended, (["call"], DEATH_SECONDS)]


def test_a_stream_gives_its_values_as_they_come_and_names_who_is_late(monkeypatch: pytest.MonkeyPatch):
    stream = Stream("reward model 0", iter(["first"]))  # type: ignore[arg-type]
    monkeypatch.setattr(ray, "wait", lambda calls, timeout: (calls if timeout else [], []))
    monkeypatch.setattr(ray, "get", lambda call, timeout: f"{call} in {timeout}")
    with pytest.raises(DeadlineExceeded, match=r"^reward model 0: no answer after 0 s while scoring"):
        stream.next("scoring", 0.0)
    assert (stream.next("scoring", 2.0), stream.next("scoring", 2.0)) == ("first in 2.0", None)


def test_a_handle_that_is_settled_asks_nobody_what_came_of_it(monkeypatch: pytest.MonkeyPatch):
    waits: list[Any] = []
    monkeypatch.setattr(ray, "wait", lambda calls, **options: waits.append((calls, options)))
    WorkerGroup("sampler", [Actor("a"), Actor("b")]).all("close").settle(7.0)
    assert waits == [([("a", "close"), ("b", "close")], {"num_returns": 2, "timeout": 7.0})]
    Handle("sampler", {}).settle(7.0)
    assert Handle("sampler", {}).wait("sampling", 1.0) == []
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("size", "tensors", "together", "way"),
    [
        (INLINE_BYTES, True, True, "inline"),
        (INLINE_BYTES + 1, True, True, "collective"),
        (INLINE_BYTES + 1, False, True, "reference"),
        (INLINE_BYTES + 1, True, False, "reference"),
        (0, False, False, "inline"),
    ],
)
def test_the_way_of_a_value(size: int, tensors: bool, together: bool, way: str):
    assert choose_way(size, tensors, together) == way


def test_what_is_said_of_values_that_travelled_together():
    assert travelled([], 0) == {"way": "inline", "bytes": 0}
    assert travelled(["reference", "inline", "reference"], 7) == {"way": "inline and reference", "bytes": 7}


def test_bytes_of_values():
    array = np.zeros((10, 5), np.float32)
    assert size_of(array) == size_of(torch.from_numpy(array)) == 200
    assert size_of(b"abc") == size_of(memoryview(b"abc")) == 3
    assert size_of({"a": array, "b": [b"abc", array]}) == 403
    assert 100_000 < size_of("x" * 100_000) < 100_100


def test_a_worker_hands_small_values_over_in_the_call_and_large_ones_by_reference(
    monkeypatch: pytest.MonkeyPatch,
):
    store: list[Any] = []

    def put(value: Any) -> int:
        store.append(value)
        return len(store) - 1

    monkeypatch.setattr(module.ray, "put", put)
    monkeypatch.setattr(module, "answer", lambda ref, actor, phase, timeout: store[ref])
    sender, receiver = Worker("learner 0"), Worker("sampler 1")
    large = np.arange(INLINE_BYTES, dtype=np.uint16)
    for value, way, chosen in (
        ([1, "two"], "inline", None),
        (large, "reference", None),
        (torch.zeros(INLINE_BYTES), "reference", None),  # there is no process group
        ([1, "two"], "reference", "reference"),
        (large, "inline", "inline"),
    ):
        parcel = sender.send(value, to=1, way=chosen)  # type: ignore[arg-type]
        assert (parcel.way, parcel.source, parcel.size) == (way, "learner 0", size_of(value))
        assert receiver.recv(parcel) is value
    sent = [(span.name, span.args["way"], span.args["bytes"]) for span in sender.spans.drain()]
    got = [(span.name, span.args["way"], span.args["source"]) for span in receiver.spans.drain()]
    assert sent[1] == ("send", "reference", 2 * INLINE_BYTES)
    assert got[1] == ("recv", "reference", "learner 0")


def test_point_to_point_goes_to_a_rank_of_the_group_alone():
    with pytest.raises(
        ValueError, match=r"^learner 0: found a Tensor for rank None; point to point go a tensor"
    ):
        Desk("learner 0").send(torch.zeros(3), way="collective")


def test_a_worker_that_keeps_nothing_on_a_device_moves_nothing():
    worker = Worker("judge 0")
    assert (worker.offload(), worker.onload()) == (0, 0)
