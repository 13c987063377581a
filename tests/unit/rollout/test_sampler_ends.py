"""The end of a sampler's loop, and of the driver's wait for it, without Ray."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rl_api.errors import DeadlineExceeded
from rl_trainer.buffer.actor import Acquired
from rl_trainer.flow.pulse import Pulse
from rl_trainer.rollout import fleet
from rl_trainer.rollout.actor import SamplerActor, SamplerLeft
from rl_trainer.rollout.fleet import Samplers, SamplerSilent, _Sampler


class Released(Future[Acquired]):
    """The buffer's answer to a sampler that it has released."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self._before = before
        self.set_result(Acquired([], 0, stop=True))

    def result(self, timeout: float | None = None) -> Acquired:
        self._before()
        return super().result(timeout)


def a_sampler(before: Any) -> SamplerActor:
    """One that has nothing to do, and is told to stop; `before` happens as it reads that."""
    sampler: Any = SamplerActor.__new__(SamplerActor)
    sampler.rank, sampler._unfinished, sampler._sampling = 0, 2, True
    sampler._leaving, sampler._given_back, sampler._wake = (threading.Event() for _ in range(3))
    sampler._jobs, sampler._evaluation, sampler._held, sampler._puts = deque(), None, deque(), []
    sampler._busy_since, sampler._loaded = None, None
    sampler._groups_wanted = lambda: 0
    reference = SimpleNamespace(future=lambda: Released(lambda: before(sampler)))
    sampler.buffer = SimpleNamespace(acquire_ref=lambda *_: reference)
    sampler.rollouts = SimpleNamespace(
        members_in_engine=0, reply_is_due=False, seconds_to_next_reply=lambda: None
    )
    return sampler  # type: ignore[no-any-return]


def test_a_sampler_that_is_told_to_go_as_the_buffer_releases_it_says_that_it_left():
    def leave(sampler: Any) -> None:
        sampler._leaving.set()
        sampler._given_back.set()

    with pytest.raises(SamplerLeft, match="has given 2 unfinished groups back"):
        a_sampler(leave).run()


def test_a_sampler_whose_run_is_over_returns():
    a_sampler(lambda _: None).run()


def test_a_loop_that_has_ended_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch):
    samplers: Any = Samplers.__new__(Samplers)
    samplers._elasticity, samplers._restarts, samplers._watch = None, 0, None
    samplers._samplers = {rank: _Sampler(None, f"run {rank}", None, "node", 0.0) for rank in (0, 1)}  # type: ignore[arg-type]
    waited: list[list[str]] = []

    def wait(calls: list[str], timeout: float) -> tuple[list[str], list[str]]:
        waited.append(calls)
        return (["run 0"], []) if len(waited) == 1 else (["batch"], [])

    monkeypatch.setattr(fleet.ray, "wait", wait)
    monkeypatch.setattr(fleet, "answer", lambda call, *_: call)
    assert samplers.wait_for("batch", "buffer", "waiting for a batch", 10.0) == "batch"
    assert waited == [["batch", "run 0", "run 1"], ["batch", "run 1"]]


def test_a_sampler_that_stands_still_counts_as_dead_and_a_learner_that_does_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
):
    samplers: Any = Samplers.__new__(Samplers)
    samplers._elasticity, samplers._restarts, samplers._data = None, 0, None
    samplers._samplers = {rank: _Sampler(None, f"run {rank}", None, "node", 0.0) for rank in (0, 1)}  # type: ignore[arg-type]
    silent = iter([{"sampler 1", "sampler 7"}, {"learner 0"}])
    samplers._watch = SimpleNamespace(pulse=Pulse(None, 60.0), look=lambda: next(silent))
    died: list[tuple[int, Exception]] = []

    def give_up(rank: int, error: Exception) -> None:
        died.append((rank, error))
        samplers._samplers[rank].died = 1.0

    samplers._died = give_up
    monkeypatch.setattr(fleet.ray, "wait", lambda calls, timeout: ([], calls))
    with pytest.raises(
        DeadlineExceeded, match=r"^learner 0: no sign of life for 60 s .* while waiting for a batch"
    ):
        samplers.wait_for("batch", "buffer", "waiting for a batch", 10.0)
    [(rank, error)] = died
    assert rank == 1
    assert isinstance(error, SamplerSilent)
