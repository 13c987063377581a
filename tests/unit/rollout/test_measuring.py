"""What a sampler shows of waits for others, and of what workers did for it."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import rl_trainer.rollout.measuring as measuring
from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.rollout.measuring import SamplerMeter, WorkMeter
from rl_trainer.rollout.task_workers import Work


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(now=100.0)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(time=lambda: now.now))
    return now


def test_waits_for_others_have_rows_of_their_own_and_are_cut_where_a_group_is_told(clock):
    engine = MagicMock()
    engine.memory.return_value = (0, 0)
    meter = SamplerMeter(engine, SpanRecorder("sampler 3"))
    rollouts = SimpleNamespace(waiting_for_tools=2, waiting_for_scores=0)
    found = []

    def at(now, tools, scores, told=False):
        clock.now, rollouts.waiting_for_tools, rollouts.waiting_for_scores = now, tools, scores
        if told:
            found.extend(meter.drain(rollouts))
        else:
            meter.look(rollouts)

    at(101.0, 2, 0)
    at(102.0, 1, 1)
    at(103.0, 0, 1)
    at(104.0, 0, 2, told=True)
    at(105.0, 0, 0, told=True)
    at(106.0, 0, 0, told=True)
    assert [(span.actor, span.name, span.start, span.end) for span in found] == [
        ("environments of sampler 3", "environment", 101.0, 103.0),
        ("reward models of sampler 3", "judge", 102.0, 104.0),
        ("reward models of sampler 3", "judge", 104.0, 105.0),
    ]


def test_what_workers_did_is_told_once():
    workers = [SimpleNamespace(work=Work()) for _ in range(2)]
    meter = WorkMeter(workers)
    assert meter.drain() == (0.0, 0, None)
    workers[0].work.add(1.0, 4, 1.5)
    workers[1].work.add(2.0, 3, 2.25)
    assert meter.drain() == (3.0, 7, 0.25)
    workers[0].work.add(0.5, 1, 1.5)
    assert meter.drain() == (0.5, 1, 0.25)
    assert meter.drain() == (0.0, 0, 0.25)
    assert WorkMeter([]).drain() == (0.0, 0, None)
