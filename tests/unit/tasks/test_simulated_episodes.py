"""Dialogues that workers step: answers come later, and what hangs is the end of its own group alone."""

import sys
from concurrent.futures import wait

import pytest

from rl_api.errors import RewardError
from rl_api.task import TaskSpec
from rl_trainer.tasks import load_task
from rl_trainer.tasks.answers import LostError
from rl_trainer.tasks.environments.targets import environment_target
from rl_trainer.tasks.killable import KillableProcess

WORLD = """\
from rl_trainer.tasks import StepResult
class World:
    def __init__(self, item, args): self.count = item["first"]
    @staticmethod
    def generate(rng, args): return {"first": rng.randint(0, 99)}
    def reset(self): return f"q{self.count}"
    def step(self, completion):
        while completion == "hang": pass
        if completion == "raise": raise ValueError("no")
        if completion == "exit": __import__("os")._exit(3)
        self.count += 1
        return StepResult(f"{self.count}", reward=0.5, done=completion == "end")
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A task whose dialogues are stepped by two workers; and the targets, by which calls are counted."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "worlds_elsewhere.py").write_text(WORLD)
    document = {"environment": "tool-use", "name": "worlds_elsewhere:World", "rewards": [{"rule": "task"}]}
    spec = TaskSpec.model_validate({**document, "simulators": {"timeout": "30s"}})
    counted = [Counted(environment_target(spec, tmp_path, KillableProcess())) for _ in range(2)]
    yield load_task(spec, 0, search=tmp_path, simulators=counted, caller=1), counted
    sys.modules.pop("worlds_elsewhere", None)


class Counted:
    """A worker that notes which calls were made. One that hangs is given up soon: others take long on a busy machine."""

    def __init__(self, target):
        self.target, self.calls, self.lost = target, [], 0

    @property
    def epoch(self):
        return self.target.epoch

    def call(self, seconds, method, *args):
        self.calls.append((method, args))
        if method == "steps" and self.lost:
            self.lost -= 1
            raise LostError
        hangs = method == "steps" and "hang" in dict(args[0]).values()
        return self.target.call(seconds / 60 if hangs else seconds, method, *args)


def begun(task, members, index=0):
    found = [task.environment(task.prompt(index), member) for member in members]
    assert {episode.reset() for episode in found} == {task.prompt(index).text}
    return found


def answers(*futures):
    wait(futures, 60)
    return [future.exception() or future.result() for future in futures]


def test_members_are_spread_and_answered_by_turns(world):
    task, counted = world
    episodes = begun(task, range(4))
    first = task.prompt(0).item["first"]
    for turn in (1, 2):
        found = answers(*(episode.step("a") for episode in episodes))
        assert [answer.observation for answer in found] == [str(first + turn)] * 4
    last = answers(*(episode.step("end") for episode in episodes))
    assert [answer.score.reward for answer in last] == [1.5] * 4
    numbers = [
        {number for method, args in one.calls if method == "steps" for number, _ in args[0]}
        for one in counted
    ]
    assert [len(found) for found in numbers] == [2, 2]


def test_what_waits_is_answered_in_one_call(world):
    task, (one, _) = world
    episodes = begun(task, (0, 2, 4))
    lane = episodes[0]._lane
    real, lane._thread = lane._thread, object()  # nobody takes them yet
    futures = [episode.step("a") for episode in episodes]
    lane._thread = real
    futures.append(lane.submit(begun(task, [6])[0], "a"))  # starts the thread
    assert all(answer.observation for answer in answers(*futures))
    assert [len(args[0]) for method, args in one.calls if method == "steps"] == [4]


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ("hang", r"environment worlds_elsewhere:World: step.* has not returned after 0.5 s .*, at prompt 0"),
        ("exit", r"step has ended its process \(exit code 3\), at prompt 0"),
        ("raise", r"step raised ValueError: no .*, at prompt 0"),
    ],
)
def test_one_that_fails_does_so_alone(world, turn, message):
    task, _ = world
    good, bad = begun(task, (0, 2))
    first = task.prompt(0).item["first"]
    answers(good.step("a"))
    wrong, right = answers(bad.step(turn), good.step("b"))
    assert isinstance(wrong, RewardError)
    with pytest.raises(RewardError, match=message):
        raise wrong
    assert right.observation == str(first + 2)
    (after,) = answers(good.step("c"))
    assert after.observation == str(first + 3)


def test_a_turn_is_made_again_where_its_worker_was_replaced(world):
    task, (one, _) = world
    (episode,) = begun(task, [0])
    one.lost = 2
    (found,) = answers(episode.step("a"))
    assert found.observation == str(task.prompt(0).item["first"] + 1)


def test_a_worker_that_is_replaced_again_and_again(world):
    task, (one, _) = world
    (episode,) = begun(task, [0])
    one.lost = 3
    (found,) = answers(episode.step("a"))
    assert isinstance(found, RewardError)
    assert "its worker was replaced 3 times during a step, at prompt 0" in str(found)
