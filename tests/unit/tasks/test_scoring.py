"""Scores by workers elsewhere: one call for all that wait, asked again where a worker is lost, alone where one ends it."""

import threading
import time
from concurrent.futures import Future, wait

import pytest

from rl_api.errors import DeadlineExceeded, RewardError
from rl_api.task import TaskSpec
from rl_trainer.tasks import load_task, scoring
from rl_trainer.tasks.answers import LostError
from rl_trainer.tasks.scoring import MOST_LOSSES, TRIES, Completion, ScoreQueue

TASK = {
    "environment": "reasoning-gym",
    "name": "chain_sum",
    "rewards": [{"rule": "model", "weight": 2.0}, {"rule": "exactMatch"}],
    "rewardModel": {"source": "org/judge", "batchSize": 4},
}


class Worker:
    """Scores a completion by its length, and notes its calls. `gate`: set, it is there; `lost`: so many calls lose it, which
    had `begun`."""

    def __init__(self, lost=0, begun=True):
        self.calls, self.lost, self.begun, self.gate = [], lost, begun, threading.Event()
        self.gate.set()
        self.error = None

    def wait_ready(self):
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error

    def score(self, completions):
        self.calls.append([one.completion for one in completions])
        if "deadly" in self.calls[-1] or self.lost:
            self.lost -= bool(self.lost)
            raise LostError(self.begun)
        return ["gives nan" if one.completion == "odd" else float(len(one.completion)) for one in completions]


def asked(text):
    return Completion(7, "1+1", None, "2", text)


def held(workers, at_once, texts):
    """All of these wait before the first call is made."""
    queue = ScoreQueue("org/judge", workers, at_once)
    gates = [worker.gate for worker in workers if worker.gate.is_set()]
    for gate in gates:
        gate.clear()
    values = [queue.submit(asked(text)) for text in texts]
    for gate in gates:
        gate.set()
    wait(values, 60)
    return [value.exception() or value.result() for value in values]


def test_what_waits_is_scored_in_one_call():
    worker = Worker()
    assert held([worker], 3, ["a", "bb", "", "dddd"]) == [1.0, 2.0, 0.0, 4.0]
    assert worker.calls == [["a", "bb", ""], ["dddd"]]


def test_what_a_lost_worker_was_scoring_is_scored_again_one_by_one():
    worker = Worker(lost=1)
    assert held([worker], 8, ["a", "bb"]) == [1.0, 2.0]
    assert worker.calls == [["a", "bb"], ["a"], ["bb"]]


def test_what_waited_at_a_lost_worker_has_not_tried_it():
    worker = Worker(lost=TRIES + 2, begun=False)
    assert held([worker], 8, ["a", "bb"]) == [1.0, 2.0]
    assert worker.calls == [["a", "bb"]] * (TRIES + 3)


def test_workers_that_end_for_ever_are_given_up():
    (error,) = held([Worker(lost=1000, begun=False)], 8, ["a"])
    assert isinstance(error, RewardError) and f"lost its worker {MOST_LOSSES} times" in str(error)


def test_nobody_waits_for_a_worker_that_is_lost_while_another_lives(monkeypatch):
    monkeypatch.setattr(scoring, "AGAIN_SECONDS", 0.01)
    away, late, here = Worker(), Worker(), Worker()
    away.error = DeadlineExceeded("reward model 0: no answer after 600 s")
    late.gate.clear()
    assert held([away, late, here], 2, ["a", "bb", "", "dddd"]) == [1.0, 2.0, 0.0, 4.0]
    assert (away.calls, late.calls) == ([], []) and len(here.calls) >= 2


def test_without_any_worker_the_error_says_so_until_one_comes_back(monkeypatch):
    monkeypatch.setattr(scoring, "AGAIN_SECONDS", 0.01)
    workers = [Worker(), Worker()]
    for rank, worker in enumerate(workers):
        worker.error = DeadlineExceeded(f"reward model {rank}: no answer after 600 s")
    queue = ScoreQueue("org/judge", workers, 4)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match="org/judge: none of its 2 workers is to be had"):
            queue.submit(asked("a")).result(60)
    workers[1].error = None
    deadline = time.monotonic() + 60
    while isinstance(error := queue.submit(asked("a")).exception(60), DeadlineExceeded):
        assert time.monotonic() < deadline
    assert error is None and workers[0].calls == []


@pytest.mark.parametrize(("bad", "why"), [("deadly", "lost its worker 3 times"), ("odd", "gives nan")])
def test_what_fails_does_so_alone(bad, why):
    worker = Worker()
    first, wrong, last = held([worker], 8, ["a", bad, "bb"])
    assert (first, last) == (1.0, 2.0)
    assert isinstance(wrong, RewardError)
    assert str(wrong).startswith(f"reward model org/judge {why}") and str(wrong).endswith("at prompt 7")
    if bad == "deadly":
        assert worker.calls.count([bad]) == TRIES - 1


def test_a_task_adds_the_value_to_its_other_parts():
    workers = [Worker(), Worker()]
    task = load_task(TaskSpec.model_validate(TASK), 0, scorers=workers)
    prompt = task.prompt(0)
    scores = [task.score(prompt, text) for text in (prompt.answer, "wrong answer")]
    assert all(isinstance(score, Future) for score in scores)
    right, wrong = (score.result(60) for score in scores)
    assert right.parts == {"model": 2.0 * len(prompt.answer), "exactMatch": 1.0}
    assert (right.reward, right.exact) == (2.0 * len(prompt.answer) + 1.0, True)
    assert (wrong.reward, wrong.exact) == (24.0, False)
    assert sum(len(call) for worker in workers for call in worker.calls) == 2


def test_without_workers_nothing_is_scored():
    task = load_task(TaskSpec.model_validate(TASK), 0)
    with pytest.raises(RewardError, match=r"task\.rewardModel: there are no workers here"):
        task.score(task.prompt(0), "2")


def test_a_finished_dialogue_is_scored_elsewhere():
    document = TASK | {"environment": "tool-use", "name": "calculator", "rewards": [{"rule": "model"}]}
    task = load_task(TaskSpec.model_validate(document), 0, scorers=[Worker()])
    final = task.environment(task.prompt(0)).final_score()
    assert isinstance(final, Future)
    assert final.result(60).reward == 0.0
