"""The driver's wait for samplers that end, stand still, load or are replaced, without Ray."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import ray

from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.flow import worker_group
from rl_trainer.flow.pulse import START_SECONDS, Pulse, Watch
from rl_trainer.rollout import fleet
from rl_trainer.rollout.fleet import Samplers
from rl_trainer.rollout.handle import SamplerHandle, SamplerSilent
from rl_trainer.rollout.launching import SamplerLauncher


def set_answer(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]) -> None:
    """What a call says, to whoever waits for it."""
    for module in (fleet, worker_group):
        monkeypatch.setattr(module, "answer", answer)


class Knows(Watch):
    """Knows who is silent."""

    def __init__(self, silent: Callable[[], set[str]]) -> None:
        super().__init__(Pulse(None, 60.0))
        self._silent = silent

    def look(self) -> frozenset[str]:
        return frozenset(self._silent())


def test_a_loop_that_has_ended_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch):
    samplers: Any = Samplers.__new__(Samplers)
    samplers._elasticity, samplers._restarts, samplers._watch = None, 0, None
    samplers._samplers = {rank: SamplerHandle(None, f"run {rank}", None, "node", 0.0) for rank in (0, 1)}  # type: ignore[arg-type]
    waited: list[list[str]] = []

    def wait(calls: list[str], timeout: float) -> tuple[list[str], list[str]]:
        waited.append(calls)
        return (["run 0"], []) if len(waited) == 1 else (["batch"], [])

    monkeypatch.setattr(fleet.ray, "wait", wait)
    set_answer(monkeypatch, lambda call, *_: call)
    assert samplers.wait_for("batch", "buffer", "waiting for a batch", 10.0) == "batch"
    assert waited == [["batch", "run 0", "run 1"], ["batch", "run 1"]]


def test_a_sampler_that_stands_still_counts_as_dead_and_a_learner_that_does_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
):
    samplers: Any = Samplers.__new__(Samplers)
    samplers._elasticity, samplers._restarts = None, 0
    samplers._samplers = {rank: SamplerHandle(None, f"run {rank}", None, "node", 0.0) for rank in (0, 1)}  # type: ignore[arg-type]
    silent = iter([{"sampler 1", "sampler 7"}, {"learner 0"}])
    samplers._watch = Knows(lambda: next(silent))
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


def stopped_sampler(monkeypatch: pytest.MonkeyPatch, limit: int) -> Any:
    """Two samplers, of which 0 stands still; who is started in its place answers, as 1 does."""
    samplers: Any = Samplers.__new__(Samplers)
    samplers._elasticity, samplers._restarts, samplers._gave_up = None, 0, False
    samplers._spec, samplers._failures, samplers._model = (
        SimpleNamespace(retry=SimpleNamespace(limit=limit)),
        {},
        None,
    )
    samplers._start_timeout, samplers._warn, samplers.begun = 300.0, lambda _: None, False
    samplers._buffer = SimpleNamespace(release=lambda rank: [])
    samplers._watch = Knows(lambda: {"sampler 0"} - {*killed})
    killed: list[str] = []

    def sampler(name: str, answers: bool) -> SamplerHandle:
        def ask(*_: Any, **__: Any) -> str:
            return f"{'answer' if answers else 'silence'} of {name}"

        actor = SimpleNamespace(
            name=name, **dict.fromkeys(("begin", "evaluate"), SimpleNamespace(remote=ask))
        )
        return SamplerHandle(actor, f"run of {name}", None, "node", 0.0)  # type: ignore[arg-type]

    samplers._samplers = {0: sampler("sampler 0", False), 1: sampler("sampler 1", True)}
    samplers._launch = lambda rank, node, model: sampler("another sampler 0", True)

    def answer(call: str, *_: Any) -> list[str]:
        if call.startswith("silence"):
            assert killed, "nobody waits for one that stands still"
            raise fleet.ActorDied("sampler 0 died")
        return [call]

    def wait(calls: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return [
            call for call in calls if call.startswith("answer") or (killed and call.startswith("silence"))
        ], []

    monkeypatch.setattr(fleet, "share_folder", lambda path: path)
    set_answer(monkeypatch, answer)
    monkeypatch.setattr(fleet.ray, "kill", lambda actor: killed.append(actor.name))
    monkeypatch.setattr(fleet.ray, "wait", wait)
    return samplers


def test_a_sampler_that_stands_still_as_sampling_begins_is_replaced(monkeypatch: pytest.MonkeyPatch):
    samplers = stopped_sampler(monkeypatch, limit=1)
    samplers.begin()
    assert samplers.ready == [0, 1]
    assert samplers._restarts == 0, "others answered since"


def test_a_run_without_retries_ends_where_a_sampler_stands_still_in_an_evaluation(
    monkeypatch: pytest.MonkeyPatch,
):
    samplers = stopped_sampler(monkeypatch, limit=0)
    with pytest.raises(fleet.ActorDied, match=r"sampler 0: no sign of life .*\(retry.limit is 0\)"):
        samplers.evaluate(["one", "two"], None)


def test_the_only_sampler_that_stands_still_as_it_loads_is_replaced_before_an_evaluation(
    monkeypatch: pytest.MonkeyPatch,
):
    samplers = stopped_sampler(monkeypatch, limit=1)
    one = samplers._samplers[0]
    one.ready, one.started = "silence", math.inf  # it may load for ever
    samplers._samplers = {0: one}
    monkeypatch.setattr(fleet, "EVALUATION_TIMEOUT", 2.0 - samplers._start_timeout)
    monkeypatch.setattr(fleet, "scored", lambda answers, warn: answers)
    assert samplers.evaluate(["one"], None) == ["answer of another sampler 0"]


def test_a_sampler_is_expected_before_its_process_is_there(monkeypatch: pytest.MonkeyPatch):
    happened: list[tuple[Any, ...]] = []
    buffer = SimpleNamespace(expect=SimpleNamespace(remote=lambda *told: happened.append(told)))
    remote = MagicMock()
    remote.options().remote = lambda rank, *_: happened.append(("launched", rank)) or MagicMock()
    monkeypatch.setattr(fleet.ray, "remote", lambda _: remote)
    watch, spec = Watch(Pulse(buffer, 60.0)), SimpleNamespace(shared_samplers=0)
    given: list[Any] = [MagicMock() for _ in range(5)]
    SamplerLauncher(cast(Any, spec), *given, watch).launch(3, None, MagicMock())
    assert happened == [("sampler 3", START_SECONDS), ("launched", 3)]


@pytest.mark.parametrize("loads", [True, False])
def test_a_replacement_has_the_start_timeout_to_load(monkeypatch: pytest.MonkeyPatch, loads: bool):
    """Where the number of samplers is fixed: one that hangs while it loads is replaced again, long before the stall."""
    clock, calls, warned = [0.0], list[str](), list[str]()
    samplers: Any = Samplers.__new__(Samplers)
    samplers._elasticity, samplers._restarts, samplers._watch, samplers.begun = None, 0, None, True
    samplers._spec, samplers._failures, samplers._model = (
        SimpleNamespace(retry=SimpleNamespace(limit=2)),
        {},
        None,
    )
    samplers._start_timeout, samplers._warn = 300.0, warned.append
    samplers._buffer = SimpleNamespace(release=lambda rank: [])
    actor = SimpleNamespace(begin=SimpleNamespace(remote=lambda: calls.append("begin")))
    samplers._launch = lambda rank, node, model: SamplerHandle(
        actor, f"run {rank}", "loaded", "node", clock[0]
    )
    samplers._samplers = {0: SamplerHandle(actor, "run 0", None, "node", 0.0)}  # type: ignore[arg-type]
    monkeypatch.setattr(fleet, "share_folder", lambda path: path)
    set_answer(monkeypatch, lambda call, *_: call)
    monkeypatch.setattr(fleet.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(fleet.ray, "kill", lambda actor: None)

    def wait(refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        assert loads or timeout <= fleet.LOOK_SECONDS, "it is looked at while it loads"
        clock[0] += timeout
        there = {"loaded": loads, "batch": not samplers._loading}
        return [ref for ref in refs if there.get(ref)], []

    monkeypatch.setattr(fleet.ray, "wait", wait)
    samplers._died(0, fleet.ActorDied("sampler 0 died"))
    assert samplers.ready == []
    assert calls == ["begin"], "it takes tickets as soon as it can"
    if loads:
        assert samplers.wait_for("batch", "buffer", "waiting for a batch", 3600.0) == "batch"
        assert samplers.ready == [0]
        assert calls == ["begin"], "a second time would take its tickets away"
        return
    with pytest.raises(fleet.ActorDied, match=r"did not load within 300 s; samplers died 3 times"):
        samplers.wait_for("batch", "buffer", "waiting for a batch", 3600.0)
    assert 600 < clock[0] < 620
    assert len(warned) == 2


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        SamplerSilent("sampler 0: no sign of life"),
        ActorDied("sampler 0 did not load within 300 s"),
        ActorDied("sampler 0 was cut off"),
    ],
)
def test_the_device_of_a_sampler_that_is_killed_goes_to_others_when_its_process_is_gone(
    error: ActorDied, ends: bool, monkeypatch: pytest.MonkeyPatch
):
    order, samplers = killed_sampler(error, monkeypatch, ends=ends)
    if ends:
        assert samplers._end(0) == 2
        assert order == ["kill", "gone", "release"]
        return
    with pytest.raises(DeadlineExceeded, match=r"^sampler 0: its process was killed, but is not known to"):
        samplers._end(0)
    assert order == ["kill", "gone"], "nobody gets its device"
    assert samplers._gave_up


def test_for_a_sampler_whose_process_is_gone_or_has_no_device_nobody_waits(monkeypatch: pytest.MonkeyPatch):
    died = ActorDied("sampler 0 died")
    died.__cause__ = ray.exceptions.ActorDiedError()
    silent = SamplerSilent("sampler 0: no sign of life")
    for error, shares, told in ((died, True, True), (silent, False, True), (silent, True, False)):
        order, samplers = killed_sampler(error, monkeypatch, shares=shares, told=told)
        assert samplers._end(0) == 2
        assert order == ["kill", "release"]


def killed_sampler(
    error: ActorDied,
    monkeypatch: pytest.MonkeyPatch,
    *,
    ends: bool = True,
    shares: bool = True,
    told: bool = True,
) -> tuple[list[str], Any]:
    """What happens, and samplers of which 0 is given up with `error`. `ends`: its process, when it is killed; `told`: which
    one that is."""
    order: list[str] = []
    samplers: Any = Samplers.__new__(Samplers)
    samplers._samplers = {0: SamplerHandle(None, cast(Any, "run"), None, "node", 0.0, shares, error=error)}
    samplers._gave_up = False
    process = SimpleNamespace(end=lambda: order.append("gone") or ends)
    samplers._buffer = SimpleNamespace(
        release=lambda rank: order.append("release") or [5, 6],
        told=lambda name: process if told and name == "sampler 0" else None,
    )
    monkeypatch.setattr(fleet.ray, "kill", lambda actor: order.append("kill"))
    return order, samplers


def test_a_sampler_that_waits_for_the_device_to_load_on_does_not_load_yet(monkeypatch: pytest.MonkeyPatch):
    """Learners have it for longer than it may take to load."""
    clock, waits, died = [0.0], [True], list[int]()
    samplers: Any = Samplers.__new__(Samplers)
    samplers._start_timeout, samplers._died = 300.0, lambda rank, error: died.append(rank)
    samplers._buffer = SimpleNamespace(waits=lambda holder: holder == "sampler 0" and waits[0])
    monkeypatch.setattr(fleet.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(fleet.ray, "wait", lambda calls, timeout: ([], calls))
    one = SamplerHandle(None, "run", "loads", "node", 0.0, shares=True)  # type: ignore[arg-type]
    for now, waiting, expected in ((1000.0, True, []), (1299.0, False, []), (1301.0, False, [0])):
        clock[0], waits[0] = now, waiting
        samplers._join(0, one)
        assert died == expected


def test_samplers_that_still_load_give_their_server_back_too_and_dead_ones_are_not_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    samplers: Any = Samplers.__new__(Samplers)
    samplers._spec = SimpleNamespace(sampler=SimpleNamespace(engine="endpoint"))
    asked: list[list[str]] = []
    monkeypatch.setattr(fleet.ray, "wait", lambda calls, **_: asked.append(calls))

    def sampler(name: str, ready: Any, died: float | None = None) -> SamplerHandle:
        actor = SimpleNamespace(close=SimpleNamespace(remote=lambda: name))
        return SamplerHandle(actor, cast(Any, None), ready, "node", 0.0, died=died)

    samplers._samplers = {
        0: sampler("ready", None),
        1: sampler("loads", "soon"),
        2: sampler("dead", None, 1.0),
    }
    samplers.close()
    assert asked == [["ready", "loads"]]


def test_an_evaluation_whose_samplers_ended_with_the_buffer_ends_as_well(monkeypatch: pytest.MonkeyPatch):
    """It had been taken for one sampler's end, and the others of the evaluation were waited for, which were gone, too."""
    samplers: Any = Samplers.__new__(Samplers)
    samplers._elasticity, samplers._restarts, samplers._watch, samplers._gave_up = None, 0, None, False
    samplers._spec = SimpleNamespace(retry=SimpleNamespace(limit=3))
    samplers._samplers = {
        rank: SamplerHandle(MagicMock(), cast(Any, f"run {rank}"), None, "node", 0.0) for rank in (0, 1)
    }
    gone = ActorDied("the buffer died while releasing a sampler")
    samplers._buffer = SimpleNamespace(release=MagicMock(side_effect=gone))

    def ended(call: object, actor: str, *_: object) -> None:
        raise ActorDied(f"{actor} lost the buffer")

    monkeypatch.setattr(fleet.ray, "wait", lambda calls, timeout: (["run 0", "run 1"], []))
    monkeypatch.setattr(fleet.ray, "kill", MagicMock())
    set_answer(monkeypatch, ended)
    monkeypatch.setattr(
        samplers, "_wait_for_one", MagicMock(side_effect=[[0, 1], AssertionError("waits for nobody")])
    )
    with pytest.raises(ActorDied, match="the buffer died while releasing a sampler"):
        samplers.evaluate([MagicMock(), MagicMock()], MagicMock())
