"""The end of a sampler's loop, and what it has to have before it begins, without Ray."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rl_api.errors import InvalidConfig
from rl_trainer.buffer.actor import Acquired
from rl_trainer.buffer.groups import Ticket
from rl_trainer.flow.turns import OwnDevice
from rl_trainer.rollout import actor as actor_module
from rl_trainer.rollout import opening
from rl_trainer.rollout.actor import SamplerActor
from rl_trainer.rollout.delivery import Delivery
from rl_trainer.rollout.evaluation import Evaluation, Evaluations
from rl_trainer.rollout.handle import SamplerLeft
from rl_trainer.rollout.measuring import Stretch
from rl_trainer.rollout.supply import Supply
from rl_trainer.tasks import Prompt


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
