"""Scores by workers elsewhere: one call for all that wait, asked again where a worker is lost, alone where one ends it."""

from concurrent.futures import Future, wait

import pytest

from rl_api.errors import RewardError
from rl_api.task import TaskSpec
from rl_trainer.tasks import load_task
from rl_trainer.tasks.answers import LostError
from rl_trainer.tasks.scoring import TRIES, Completion, ScoreLane

TASK = {
    "environment": "reasoning-gym",
    "name": "chain_sum",
    "rewards": [{"rule": "model", "weight": 2.0}, {"rule": "exactMatch"}],
    "rewardModel": {"source": "org/judge", "batchSize": 4},
}


class Worker:
    """Scores a completion by its length, and notes its calls."""

    def __init__(self):
        self.calls, self.lost = [], 0

    def score(self, completions):
        self.calls.append([one.completion for one in completions])
        if "deadly" in self.calls[-1] or self.lost:
            self.lost -= bool(self.lost)
            raise LostError
        return ["gives nan" if one.completion == "odd" else float(len(one.completion)) for one in completions]


def asked(text):
    return Completion(7, "1+1", None, "2", text)


def held(lane, texts):
    """All of these wait before the first call is made."""
    thread, lane._thread = lane._thread, object()
    values = [lane.submit(asked(text)) for text in texts[:-1]]
    lane._thread = thread
    values.append(lane.submit(asked(texts[-1])))
    wait(values, 60)
    return [value.exception() or value.result() for value in values]


def test_what_waits_is_scored_in_one_call():
    worker = Worker()
    assert held(ScoreLane("org/judge", worker, 3), ["a", "bb", "", "dddd"]) == [1.0, 2.0, 0.0, 4.0]
    assert worker.calls == [["a", "bb", ""], ["dddd"]]


def test_a_lost_worker_is_asked_again():
    worker = Worker()
    worker.lost = 1
    assert held(ScoreLane("org/judge", worker, 8), ["a", "bb"]) == [1.0, 2.0]
    assert worker.calls == [["a", "bb"]] * 2


@pytest.mark.parametrize(("bad", "why"), [("deadly", "lost its worker 3 times"), ("odd", "gives nan")])
def test_what_fails_does_so_alone(bad, why):
    worker = Worker()
    first, wrong, last = held(ScoreLane("org/judge", worker, 8), ["a", bad, "bb"])
    assert (first, last) == (1.0, 2.0)
    assert isinstance(wrong, RewardError)
    assert str(wrong).startswith(f"reward model org/judge {why}") and str(wrong).endswith("at prompt 7")
    if bad == "deadly":
        assert worker.calls.count([bad]) == TRIES


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
    assert [len(worker.calls) for worker in workers] == [1, 1]


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
