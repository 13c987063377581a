"""A run in a queue through the whole reconcile: its boost, what is said of it, and what its evictions cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from operator_worlds import NOW, make_reading, running_ray
from queued_runs import Queued, pods

from rl_api.progress import CheckpointStatus
from rl_operator.model.decision import Decision
from rl_operator.model.workload import Boosts

ON = Boosts(gate=True, levels=(0, 1000), manager="us")


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


class Boosted(Queued):
    """A run that trains, under a Kueue that minds boosts, which keeps what the operator writes."""

    def __init__(self) -> None:
        super().__init__()
        self.admit()
        self.story.now += minutes(2)
        self.train()
        self.writes: list[int] = []

    def at(self, when: datetime, boosts: Boosts = ON, **changes: Any) -> Decision:
        """A look at that time, in which the driver has just said something."""
        self.story.now = when
        changes = {"reading": make_reading(time=when, checkpoint=None), **changes}
        decision = self.look(workloads=(self.main,), boosts=boosts, **changes)
        if decision.boost is not None:
            assert (decision.boost.workload, decision.boost.uid) == (self.main.name, self.main.uid)
            self.writes.append(decision.boost.value)
            self.main = replace(self.main, boost=decision.boost.value, boost_writers={"us": when})
        return decision


@pytest.fixture
def run() -> Boosted:
    return Boosted()


def shown(decision: Decision) -> tuple[int | None, str | None]:
    queue = decision.status.queue
    assert queue is not None
    return queue.boost, queue.boost_off


def events(decision: Decision) -> list[str]:
    return [note.reason for note in decision.notes]


def test_the_boost_grows_while_work_is_not_saved_and_is_shown(run: Boosted) -> None:
    shows = [shown(run.at(NOW + minutes(minute)))[0] for minute in (2, 10, 30, 60)]
    assert shows == run.writes == sorted(set(run.writes))
    # A checkpoint: less is lost.
    saved = CheckpointStatus(step=9, uri="/c", time=NOW + minutes(65))
    reading = replace(make_reading(time=NOW + minutes(65)), checkpoint=saved)
    assert run.at(NOW + minutes(65), reading=reading).boost is not None
    assert run.writes[-1] < run.writes[-2]


def test_when_it_began_to_train_stays_and_says_what_a_restart_takes(run: Boosted) -> None:
    known = run.at(NOW + minutes(9)).status.attempts[0].trained_time
    assert known == NOW + minutes(2)
    assert run.at(NOW + minutes(30)).status.attempts[0].trained_time == known


def test_a_run_that_is_evicted_has_no_boost_before_its_quota_is_given_back(run: Boosted) -> None:
    run.at(NOW + minutes(30))
    assert (run.main.boost or 0) > 0
    run.story.now = NOW + minutes(31)
    decision = run.evict()
    # Nothing of it is there any more: all in one look, the boost first (rl_operator.runtime.cluster).
    assert decision.boost is not None and decision.boost.value == 0
    decision = run.look(rays=(), pods=())
    assert [one.to for one in decision.tell_queue] == ["Released"]
    assert decision.boost is not None and decision.boost.value == 0
    assert shown(decision)[0] is None


def test_what_an_eviction_should_cost_and_did_cost(run: Boosted) -> None:
    run.at(NOW + minutes(12))
    run.story.now = NOW + minutes(12)
    predicted = run.evict().status.evictions[0].predicted_seconds
    assert predicted == 10 * 60 + 2 * 60, "trained since the second minute, as long as it took to start"
    run.story.now = NOW + minutes(13)
    run.look(rays=(), pods=())
    run.queue(reserved=False, admitted=False)
    run.story.now = NOW + minutes(20)
    run.admit()
    for minute, step, cost in ((21, 5, None), (25, 6, None), (29, 7, 9 * 60.0), (40, 9, 9 * 60.0)):
        reading = make_reading(step=step, time=NOW + minutes(minute))
        there = {"rays": (running_ray(),), "pods": pods(2)}
        eviction = run.at(NOW + minutes(minute), reading=reading, **there).status.evictions[0]
        assert (eviction.step, eviction.resumed_step, eviction.lost_seconds) == (7, 5, cost)


def test_a_gate_that_is_off_is_said_once(run: Boosted) -> None:
    off = replace(ON, gate=False)
    decision = run.at(NOW + minutes(3), off)
    assert (decision.boost, shown(decision), events(decision)) == (None, (None, "GateOff"), ["BoostGateOff"])
    decision = run.at(NOW + minutes(4), off)
    assert (shown(decision), events(decision)) == ((None, "GateOff"), [])
    # Not known for a while: nothing is said anew.
    assert shown(run.at(NOW + minutes(5), replace(ON, gate=None))) == (None, "GateOff")
    assert events(run.at(NOW + minutes(6), off)) == []
    assert shown(run.at(NOW + minutes(7)))[1] is None


def test_a_second_writer_is_said_once_and_left_alone(run: Boosted) -> None:
    run.at(NOW + minutes(3))
    run.main = replace(run.main, boost=-10, boost_writers={"kueue-priority-booster": NOW})
    decision = run.at(NOW + minutes(40))
    assert (decision.boost, shown(decision)) == (None, (-10, "OtherWriter"))
    assert events(decision) == ["BoostOtherWriter"]
    assert "kueue-priority-booster" in decision.notes[0].message
    assert events(run.at(NOW + minutes(41))) == []
    assert len(run.writes) == 1
