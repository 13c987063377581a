"""The end of a sampler's loop, and of the driver's wait for it, without Ray."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import ray

from rl_api.errors import ActorDied, DeadlineExceeded, InvalidConfig
from rl_trainer.buffer.actor import Acquired
from rl_trainer.buffer.groups import Ticket
from rl_trainer.flow import worker_group
from rl_trainer.flow.pulse import START_SECONDS, Pulse, Watch
from rl_trainer.flow.turns import OwnDevice
from rl_trainer.rollout import actor as actor_module
from rl_trainer.rollout import fleet, opening
from rl_trainer.rollout.actor import SamplerActor
from rl_trainer.rollout.delivery import Delivery
from rl_trainer.rollout.evaluation import Evaluation, Evaluations
from rl_trainer.rollout.fleet import Samplers
from rl_trainer.rollout.handle import SamplerHandle, SamplerLeft, SamplerSilent
from rl_trainer.rollout.launching import SamplerLauncher
from rl_trainer.rollout.measuring import Stretch
from rl_trainer.rollout.supply import Supply
from rl_trainer.tasks import Prompt


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
    sampler.rank, sampler._sampling, sampler._wake = 0, True, threading.Event()
    sampler._stretch, sampler._loaded = Stretch(MagicMock(), MagicMock()), None
    sampler._hands_over, sampler._meter = False, MagicMock()
    sampler._groups_wanted, sampler._device = lambda: 0, OwnDevice()
    reference = SimpleNamespace(future=lambda: Released(lambda: before(sampler)))
    sampler.buffer = MagicMock(acquire_ref=lambda *_: reference)
    sampler.buffer.release.return_value = [5, 6]
    sampler._evaluations, sampler._supply, sampler._delivery = (
        Evaluations(),
        Supply(sampler.buffer, 0, sampler._wake.set),
        Delivery(sampler.buffer, 0, sampler._wake.set),
    )
    sampler.rollouts = SimpleNamespace(
        may_advance=False, seconds_to_next_reply=lambda: None, deliver_scores=list
    )
    return sampler  # type: ignore[no-any-return]


def test_a_sampler_that_is_told_to_go_as_the_buffer_releases_it_says_that_it_left():
    with pytest.raises(SamplerLeft, match="has given 2 unfinished groups back"):
        a_sampler(lambda sampler: sampler._delivery.leave()).run()


def test_an_evaluation_of_a_sampler_that_leaves_ends_as_its_loop_does():
    """Both the one under way and the one that waits: they are for others now."""
    jobs = [Evaluation([Prompt(0, "", "", {})], MagicMock(), MagicMock()) for _ in range(2)]

    def leave(sampler: Any) -> None:
        for job in jobs:
            sampler._evaluations.ask(job)
        sampler._evaluations.begin()
        sampler._delivery.leave()

    with pytest.raises(SamplerLeft):
        a_sampler(leave).run()
    for job in jobs:
        with pytest.raises(SamplerLeft, match="has given 2 unfinished groups back"):
            job.result("sampler 0", 0.0)


def test_a_sampler_whose_run_is_over_returns():
    a_sampler(lambda _: None).run()


def test_a_sampler_that_leaves_lives_when_it_gives_its_groups_back():
    """It has its device till its loop has ended."""
    sampler: Any = a_sampler(lambda _: None)
    assert sampler._delivery.leave() == 2
    assert sampler.buffer.release.call_args.kwargs == {"lives": True}


def test_the_reason_of_an_end_is_told_though_the_device_cannot_be_left():
    def fail(_: Any) -> None:
        raise InvalidConfig("the reason")

    sampler: Any = a_sampler(fail)
    sampler._device = MagicMock(close=MagicMock(side_effect=RuntimeError("no room")))
    with pytest.raises(InvalidConfig, match="the reason"):
        sampler.run()
    sampler._device.close.assert_called_once()


def test_a_sampler_asks_whether_tickets_that_it_held_meanwhile_are_still_its_own():
    """Learners had the device, and others may have got them."""
    sampler: Any = a_sampler(lambda _: None)
    mine, gone = Ticket(3, 0, False, issue=7), Ticket(4, 0, False, issue=8)
    sampler._supply.held = deque([Acquired([mine, gone], 0, ["weights"])])
    sampler._swaps, sampler._hands_over = False, True
    sampler.buffer.owned = lambda rank, tickets: [one for one in tickets if one == mine]
    sampler._take_device()
    assert sampler._supply.held == deque([Acquired([mine], 0, ["weights"])])


@pytest.mark.parametrize(
    ("hands_over", "jobs", "held", "moves", "expected"),
    [
        (True, 0, None, True, True),
        (False, 0, None, True, False),
        (True, 1, None, True, False),
        (True, 0, ["weights"], True, False),
        (True, 0, None, False, False),
    ],
)
def test_a_sampler_leaves_the_rest_to_others_where_nothing_is_left_to_do_here(
    hands_over: bool, jobs: int, held: Any, moves: bool, expected: bool
):
    sampler: Any = a_sampler(lambda _: None)
    sampler._hands_over = hands_over
    for _ in range(jobs):
        sampler._evaluations.ask(MagicMock())
    sampler._supply.held = deque([Acquired([Ticket(3, 0, False)], 1, held)])
    sampler.rollouts.can_move = moves
    assert sampler._can_move() is expected


def test_an_evaluation_waits_for_the_device_and_is_computed_nowhere_else():
    """What begins with its device goes on only while it is the sampler's."""
    happened: list[Any] = []
    sampler: Any = a_sampler(lambda _: None)
    sampler._loaded, sampler.spec, sampler.task = 0, MagicMock(seed=1), MagicMock()
    sampler._evaluations.ask(Evaluation([Prompt(0, "", "", {})], MagicMock(version=0), MagicMock()))
    sampler._advance = lambda: happened.append("decodes")
    sampler.rollouts.start = lambda *_: (
        happened.append("begins"),
        setattr(sampler.rollouts, "may_advance", True),
    )
    ours = iter([False, True, True, False, True])

    class Turns(OwnDevice):
        is_waited_for = False

        def take_or_leave(self, needed: bool, begun: bool, moves: Callable[[], bool]) -> bool:
            assert needed
            found = next(ours)
            happened.append("ours" if found else "others'")
            sampler._wake.set()
            return found

    sampler._device = Turns()
    looks = iter([True] * 5)
    sampler._supply = SimpleNamespace(hear=lambda _: next(looks, False), held=[], ask=lambda *_: None)
    sampler.run()
    turns = [
        ["others'"],
        ["ours", "begins", "decodes"],
        ["ours", "decodes"],
        ["others'"],
        ["ours", "decodes"],
    ]
    assert happened == [one for turn in turns for one in turn]


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


def test_what_a_sampler_refuses_it_refuses_before_it_has_a_server(monkeypatch: pytest.MonkeyPatch):
    opened: list[object] = []

    def refuse(*_: object) -> None:
        raise InvalidConfig("spec.sampler.stop: found '', allowed: some text")

    for name in ("load_task", "load_tokenizer", "heldout_count", "create_receiver", "Chat"):
        monkeypatch.setattr(actor_module, name, MagicMock())
    monkeypatch.setattr(actor_module.ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    monkeypatch.setattr(actor_module.torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(actor_module, "open_engine", lambda *_, **__: opened.append(None))
    monkeypatch.setattr(actor_module, "stop_tokens", refuse)
    spec: Any = MagicMock()
    spec.model.dtype = "float32"
    with pytest.raises(InvalidConfig, match="allowed: some text"):
        SamplerActor(0, spec, MagicMock(), MagicMock(), None, None)
    assert not opened


@pytest.mark.parametrize(("rank", "expected"), [(0, ["claim", "load", "give back"]), (1, ["load"])])
def test_a_sampler_that_shares_its_device_loads_under_a_lease(
    monkeypatch: pytest.MonkeyPatch, rank: int, expected: list[str]
):
    """Also where nobody's tensors move: learners may be at work when it takes the place of another."""
    order: list[str] = []

    @contextmanager
    def lease(leases: object, rank: int) -> Iterator[None]:
        order.append("claim")
        yield
        order.append("give back")

    def load(*_: object, **__: object) -> MagicMock:
        order.append("load")
        return MagicMock()

    for name in ("VllmOptions", "EndpointOptions"):
        monkeypatch.setattr(opening, name, MagicMock())
    monkeypatch.setattr("ray.get_gpu_ids", list)
    monkeypatch.setattr(opening, "device_for_loading", lease)
    monkeypatch.setattr(opening, "create_engine", load)
    spec: Any = MagicMock(shared_samplers=1)
    spec.model.dtype = "float32"
    opening.open_engine(spec, rank, MagicMock(), Path("model"), None, other_pods=(), swaps=False)
    assert order == expected


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
