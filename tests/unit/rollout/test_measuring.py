"""What a sampler shows of waits for others, and of what workers did for it."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import rl_trainer.flow.worker_group as worker_group
import rl_trainer.rollout.measuring as measuring
import rl_trainer.rollout.task_workers as task_workers
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.rollout.measuring import SamplerMeter, WorkMeter
from rl_trainer.rollout.task_workers import Work, WorkerScorer, WorkerTarget


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


class Call:
    """A worker's method; `remote` gives what it returns, and takes time."""

    def __init__(self, called):
        self.called = called

    def options(self, **_):
        return self

    def remote(self, *args):
        return self.called(*args)


def answered(monkeypatch):
    """What a call returns is its answer."""
    monkeypatch.setattr(worker_group, "answer", lambda call, *_: call)
    monkeypatch.setattr(worker_group, "ray", SimpleNamespace(wait=lambda calls, timeout: (calls, [])))


def test_a_simulator_works_for_turns_in_a_part_of_its_calls(monkeypatch):
    now = SimpleNamespace(now=0.0)

    def called(seconds, method, args, life):
        now.now += 5.0
        return "value", len(args), "life", 2.0

    monkeypatch.setattr(task_workers, "time", SimpleNamespace(perf_counter=lambda: now.now))
    answered(monkeypatch)
    target = WorkerTarget(WorkerGroup("simulator", [SimpleNamespace(call=Call(called))]), 0, 60.0)
    target.call(1.0, "begin", 7, {}, {}, [])
    target.call(1.0, "reset", 7)
    target.call(1.0, "steps", [(7, "up"), (8, "down")])
    target.call(1.0, "step", 7, "up")
    assert target.work == Work(8.0, 3, 3.0)


def test_a_model_works_from_when_it_begins_with_what_it_was_asked_for(monkeypatch):
    now = SimpleNamespace(now=0.0)

    def passes():
        now.now += 10.0  # others were first
        yield {}
        now.now += 1.5
        yield {0: 1.0, 1: 2.0}

    monkeypatch.setattr(task_workers, "time", SimpleNamespace(perf_counter=lambda: now.now))
    answered(monkeypatch)
    group = WorkerGroup("reward model", [SimpleNamespace(score=Call(lambda asked: passes()))])
    scorer = WorkerScorer(group, 0, 1.0, 1.0)
    assert scorer.score([None, None]) == [1.0, 2.0]
    assert scorer.work == Work(1.5, 2, 10.0)


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
