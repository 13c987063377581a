"""What a sampler asks its buffer for and gives it, with a buffer that answers when it is told to."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.buffer.actor import Acquired
from rl_trainer.buffer.groups import Ticket
from rl_trainer.rollout.delivery import Delivery
from rl_trainer.rollout.supply import POLL_SECONDS, Supply

TICKETS = [Ticket(3, 0, False, issue=7), Ticket(4, 0, False, issue=8)]


class Asked:
    """A buffer that keeps what it is asked for; `answers` are futures in that order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[Future[Acquired]] = []

    def acquire_ref(self, *call: Any) -> Any:
        self.calls.append(call)
        self.answers.append(Future())
        return SimpleNamespace(future=lambda: self.answers[-1])


def test_one_call_for_groups_and_one_that_watches_are_open_at_a_time() -> None:
    buffer, woken = Asked(), list[int]()
    supply = Supply(buffer, 5, lambda: woken.append(1))  # type: ignore[arg-type]
    for groups in (2, 3, 0, 0):
        supply.ask(groups, None)
    assert buffer.calls == [(5, 2, POLL_SECONDS, -1), (5, 0, POLL_SECONDS, -1)]
    buffer.answers[0].set_result(Acquired(TICKETS, 4, ["weights"]))
    assert woken == [1]
    assert supply.hear(None)
    assert (supply.brings_weights, supply.held[0].tickets) == (True, TICKETS)
    # Weights that are here, but not loaded yet, are not sent again.
    supply.ask(1, 2)
    assert buffer.calls[-1] == (5, 1, POLL_SECONDS, 4)


@pytest.mark.parametrize(
    ("answer", "loaded", "held"),
    [
        (Acquired([], 3), 3, False),
        (Acquired([], 3), 4, False),
        (Acquired([], 3, ["weights"]), 2, True),
        (Acquired([], 3, ["weights"]), None, True),
        (Acquired(TICKETS, 3), 4, True),
    ],
)
def test_of_an_answer_that_was_overtaken_only_tickets_are_of_use(
    answer: Acquired, loaded: int | None, held: bool
) -> None:
    buffer = Asked()
    supply = Supply(buffer, 0, lambda: None)  # type: ignore[arg-type]
    supply.ask(1, loaded)
    buffer.answers[0].set_result(answer)
    assert supply.hear(loaded)
    assert bool(supply.held) is held


def test_who_is_told_to_stop_holds_nothing_of_that_answer() -> None:
    buffer = Asked()
    supply = Supply(buffer, 0, lambda: None)  # type: ignore[arg-type]
    supply.ask(0, None)
    buffer.answers[0].set_result(Acquired([], 3, stop=True))
    assert not supply.hear(None)
    assert not supply.held


def test_tickets_are_given_up_and_weights_that_came_with_them_are_not() -> None:
    supply = Supply(MagicMock(), 0, lambda: None)
    supply.held.extend([Acquired(TICKETS[:1], 1), Acquired(TICKETS[1:], 2, ["weights"])])
    assert supply.give_up_tickets() == TICKETS
    assert list(supply.held) == [Acquired([], 2, ["weights"])]


@pytest.mark.parametrize("error", [ActorDied("the buffer died"), DeadlineExceeded("no answer")])
def test_who_leaves_says_so_though_the_buffer_does_not_answer(error: Exception) -> None:
    woken: list[int] = []
    buffer = MagicMock()
    buffer.release.side_effect = error
    delivery = Delivery(buffer, 2, lambda: woken.append(1))
    assert delivery.leave() is None
    assert (delivery.leaves, woken) == (True, [1])
    assert (
        str(delivery.left()) == "sampler 2 is told to go with its pod and has given 0 unfinished groups back"
    )


def test_who_is_ended_next_is_kept_until_its_loop_has_told_the_driver() -> None:
    buffer = MagicMock()
    buffer.release.return_value = [5, 6]
    woken = threading.Event()
    delivery = Delivery(buffer, 2, woken.set)
    with ThreadPoolExecutor(1) as pool:
        notice = pool.submit(delivery.leave_and_end)
        assert woken.wait(30.0)
        assert not notice.done(), "the loop is still at work"
        assert "2 unfinished groups" in str(delivery.left())
        assert notice.result(30.0) == 2


def test_a_loop_that_does_not_end_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_trainer.rollout.delivery.END_SECONDS", 0.01)
    buffer = MagicMock()
    buffer.release.return_value = []
    assert Delivery(buffer, 2, lambda: None).leave_and_end() == 0


def test_what_the_buffer_does_not_take_is_raised_once() -> None:
    buffer, refused, taken = MagicMock(), Future[Any](), Future[Any]()
    buffer.put_ref.return_value.future.side_effect = [refused, taken]
    delivery = Delivery(buffer, 0, lambda: None)
    delivery.put([])
    delivery.put([])
    delivery.check()
    refused.set_exception(ActorDied("the buffer died"))
    taken.set_result([])
    with pytest.raises(ActorDied, match="the buffer died"):
        delivery.check()
    delivery.check()
