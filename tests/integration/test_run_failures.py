"""Runs in which something dies, hangs or is nonsense: what goes on, what ends, what is said, and that nothing is lost."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training_runs import PROMPTS, REWARD_RULE, RunFiles, actors, meanwhile, until

from rl_api import load_run
from rl_trainer.tasks import load_task
from rl_trainer.tasks.types import HELDOUT_INDEX

pytestmark = pytest.mark.usefixtures("local_ray")

HINT = "add --resume to the same command to go on from the last checkpoint"
# Long enough for a reward that does not hang, also on a busy machine.
REWARDS = [REWARD_RULE | {"timeout": "15s"}]


def kill(role: str) -> Callable[[], None]:
    def action() -> None:
        actors(role)[0].kill()

    return action


@pytest.mark.parametrize(
    "parts",
    [
        # The one that takes its place has no version to begin from.
        {"weightSync": {"transport": "delta"}},
        # The one that dies takes turns on the learner's device.
        {"weightSync": {"transport": "ipc"}, "placement": {"mode": "hybrid", "sharedSamplers": 1}},
    ],
    ids=["delta", "ipc"],
)
def test_a_killed_sampler_is_replaced_and_its_groups_are_sampled_again(tmp_path: Path, parts: dict[str, Any]):
    files = RunFiles(tmp_path, sampler={"replicas": 2}, stop={"maxSteps": 10_000}, **parts)
    files.feel(delay=0.02)
    killed: list[int] = []

    def kill_and_let_it_go_on() -> None:
        killed.append(len(files.steps))
        actors("Sampler")[0].kill()
        until(lambda: len(files.steps) > killed[0] + 4 and len(actors("Sampler")) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(lambda: len(files.steps) >= 3, kill_and_let_it_go_on):
        outcome = files.run()
    assert outcome.code == 143
    assert "died and was replaced; its" in outcome.out
    assert [prompt for r in files.steps for prompt in r.prompts] == list(range(len(files.steps) * PROMPTS))
    files.assert_nothing_lost_or_twice()


def test_killed_learner_and_killed_buffer_end_the_run_with_a_reason_and_it_resumes_each_time(tmp_path: Path):
    files = RunFiles(tmp_path, learner={"replicas": 2})
    many = ("--set", "stop.maxSteps=10000")
    files.feel(delay=0.02)
    with meanwhile(lambda: len(files.steps) >= 3, kill("Learner")):
        outcome = files.run(*many)
    assert outcome.code == 1
    assert outcome.sentence.startswith("learner ")
    assert " died while " in outcome.sentence
    assert outcome.sentence.endswith(HINT)

    reached = files.checkpoints[-1]
    with meanwhile(lambda: len(files.steps) >= reached + 3, kill("Buffer")):
        outcome = files.run("--resume", *many)
    assert outcome.code == 1
    assert outcome.sentence.startswith("buffer died while ")
    assert outcome.sentence.endswith(HINT)

    files.feel()
    files.run("--resume", "--set", f"stop.maxSteps={files.checkpoints[-1] + 3}").assert_well()
    files.assert_nothing_lost_or_twice()


def test_a_reward_that_fails_stops_the_run_and_its_prompt_comes_again(tmp_path: Path):
    """Raises, hangs, is NaN: each ends the run, each time the same prompt comes again, in the end it is trained on."""
    files = RunFiles(tmp_path, task={"rewards": REWARDS})
    moody = 13  # in step 4: after the checkpoint of step 2
    sentences = {}
    for number, mood in enumerate(("raise", "hang", "nan")):
        files.feel({moody: mood})
        outcome = files.run(*(["--resume"] if number else []))
        assert outcome.code == 3
        assert files.checkpoints == [2]
        assert f"at prompt {moody} ('say " in outcome.sentence
        sentences[mood] = outcome.sentence
    assert "moody_reward:reward raised ValueError: no reward today" in sentences["raise"]
    assert "has not returned after 15s (its timeout)" in sentences["hang"]
    assert "moody_reward.py:" in sentences["hang"]
    assert "nan" in sentences["nan"].lower()
    files.feel()
    files.run("--resume").assert_well()
    assert [prompt for r in files.steps for prompt in r.prompts] == list(range(6 * PROMPTS))
    files.assert_nothing_lost_or_twice()


def test_a_reward_that_fails_drops_the_group_where_that_is_wanted(tmp_path: Path):
    files = RunFiles(tmp_path, task={"onRewardError": "drop", "rewards": REWARDS})
    moods = {2: "raise", 9: "hang", 11: "nan"}
    files.feel(moods)
    outcome = files.run().assert_well()
    assert files.steps[-1].groups_dropped == {"reward_error": 3}
    assert files.summary["groups_dropped"] == {"reward_error": 3}
    trained = [prompt for r in files.steps for prompt in r.prompts]
    assert trained == [index for index in range(6 * PROMPTS + 3) if index not in moods]
    assert "24 trained; dropped 3 (reward error 3)" in outcome.out
    files.assert_nothing_lost_or_twice()


def test_held_out_prompts_whose_reward_fails_are_left_out_where_that_is_wanted(tmp_path: Path):
    evaluation = {"everySteps": 2, "samples": 3}
    files = RunFiles(tmp_path, task={"onRewardError": "drop", "evaluation": evaluation}, stop={"maxSteps": 2})
    files.feel({HELDOUT_INDEX + 1: "raise"})
    outcome = files.run().assert_well()
    told = (
        "1 of 3 held-out prompts are left out of the evaluation: reward moody_reward:reward raised ValueError"
    )
    assert outcome.out.count(told) == 2, "before the first step and after the last"
    assert files.summary["heldout_end"] is not None
    assert files.summary["groups_dropped"] == {}

    files = RunFiles(tmp_path / "none", task={"onRewardError": "drop", "evaluation": evaluation})
    files.feel({HELDOUT_INDEX + number: "raise" for number in range(3)})
    outcome = files.run()
    assert outcome.code == 3
    assert outcome.sentence.startswith("no held-out prompt has a score: reward moody_reward:reward raised")

    files = RunFiles(tmp_path / "stop", task={"evaluation": evaluation})
    files.feel({HELDOUT_INDEX + 1: "raise"})
    outcome = files.run()
    assert outcome.code == 3
    assert outcome.sentence.startswith("reward moody_reward:reward raised ValueError: no reward today")


TALKER = """
from rl_trainer.tasks import StepResult

class Talker:
    def __init__(self, item, args): self.item = item
    @staticmethod
    def generate(rng, args): return {"answer": "1", "question": f"ask {rng.randint(0, 9999)}"}
    def reset(self): return self.item["question"]
    def step(self, completion): return StepResult("1" * 100_000, reward=1.0)
"""


def test_observations_longer_than_the_context_end_their_dialogues_and_are_not_trained_on(tmp_path: Path):
    task = {"environment": "tool-use", "name": "talker:Talker", "file": None, "rewards": [{"rule": "task"}]}
    files = RunFiles(
        tmp_path,
        task=task,
        sampler={"maxNewTokens": 14, "stop": list("0123456789abcdefghijklmnopqrstuvwxyz")},
        stop={"maxSteps": 3},
    )
    (tmp_path / "talker.py").write_text(TALKER)
    files.run().assert_well()
    assert len(files.steps) == 3
    assert all(record.truncated_fraction == 1 for record in files.steps)
    assert all(record.reward_mean > 0 for record in files.steps)


def test_a_loss_that_is_no_number_is_skipped_and_three_in_a_row_end_the_run(tmp_path: Path):
    files = RunFiles(tmp_path, algorithm={"advantage": {"normalizeByStd": False}}, stop={"maxSteps": 20})
    third, seventh = 2 * PROMPTS, 6 * PROMPTS
    files.feel(dict.fromkeys((third, *range(seventh, seventh + 5 * PROMPTS)), "huge"))
    outcome = files.run()
    assert outcome.code == 1, outcome
    assert "loss or gradient was not a number in 3 steps in a row" in outcome.sentence
    assert "lower algorithm.learningRate" in outcome.sentence
    assert [r.skipped_steps for r in files.steps] == [0, 0, 1, 1, 1, 1, 2, 3, 4]
    assert math.isfinite(files.steps[3].loss), "the step after it is a good one"
    files.feel()
    files.run("--resume", "--set", "stop.maxSteps=9").assert_well()
    files.assert_nothing_lost_or_twice()


def test_samplers_that_compute_another_policy_than_the_learner_end_the_run_before_it_is_kept(tmp_path: Path):
    files = RunFiles(tmp_path)
    # One decodes token by token, the other reads whole sequences: their last bits differ.
    outcome = files.run("--set", "weightSync.maxMismatch=1.000000000001")
    assert outcome.code == 2, outcome
    assert "step 1: samplers (engine torch) and learner differ" in outcome.sentence
    assert "spec.weightSync.maxMismatch is the bound" in outcome.sentence
    assert files.steps == []


def test_a_prompt_longer_than_the_context_says_which_and_what_to_change(tmp_path: Path):
    files = RunFiles(tmp_path)
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    long = json.dumps({"prompt": "x" * 40, "answer": "1"})
    (tmp_path / "prompts.jsonl").write_text("\n".join([*lines[:4], long]) + "\n")
    outcome = files.run("--set", "task.onLongPrompt=fail")
    assert outcome.code == 2
    for part in ("prompt ", "40 tokens", "32", "context", "task.", "model.tiny.maxPositions"):
        assert part in outcome.sentence


def test_prompts_longer_than_the_context_are_left_out_and_counted(tmp_path: Path):
    files = RunFiles(tmp_path, stop={"maxSteps": 4})
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    long = json.dumps({"prompt": "x" * 40, "answer": "1"})
    (tmp_path / "prompts.jsonl").write_text("\n".join([*lines[:7], long]) + "\n")
    outcome = files.run()
    assert outcome.code == 0
    assert (
        "task.onLongPrompt: 1 of 8 prompts are left out, as they do not fit into the model's context of 32 tokens with at "
        "least one new token" in outcome.out
    )
    task = load_task(load_run(files.file).spec.task, 1, search=tmp_path)
    trained = [prompt for record in files.steps for prompt in record.prompts]
    assert len(trained) == 4 * PROMPTS
    assert not {task.prompt(prompt).text for prompt in trained} & {"x" * 40}
    long_ones = {index for index in range(16) if task.prompt(index).text == "x" * 40}
    assert set(range(max(trained))) - set(trained) == {index for index in long_ones if index < max(trained)}
    assert files.summary["groups_dropped"] == {"prompt_too_long": 2}
    assert "prompt too long 2" in outcome.out
    files.assert_nothing_lost_or_twice()


@pytest.mark.parametrize("asynchronous", ["never", "always"])
def test_a_full_disk_leaves_the_checkpoint_before_and_says_so(tmp_path: Path, asynchronous: str):
    written = {"everySteps": 2, "asynchronous": asynchronous}
    files = RunFiles(tmp_path, stop={"maxSteps": 10_000}, checkpoint=written)
    # The step after the second checkpoint ends when the disk is full: no learner is in the middle of a file then.
    files.feel({4 * PROMPTS: "holdFirst"})
    size = (10_000, 10_000)  # smaller than the model, larger than everything else

    def limit() -> None:
        """The learner itself writes what it holds."""
        actors("Learner")[0].rlimit(resource.RLIMIT_FSIZE, size)
        (tmp_path / "let-go").touch()

    with meanwhile(lambda: len(files.checkpoints) > 1, limit):
        outcome = files.run()
    assert outcome.code == 1
    assert "model/model.safetensors: File too large" in outcome.sentence
    good, older = files.checkpoints[-1], files.checkpoints[-2]
    assert f"The checkpoint of step {good + 2} could not be written" in outcome.sentence
    assert f"The checkpoint of step {good} is untouched: free some space" in outcome.sentence
    assert not list((files.out / "checkpoints").glob(".tmp*"))

    # And the newest checkpoint damaged, as by a disk that lost its cache: the one before it serves.
    newest = files.out / "checkpoints" / f"step-{good:08d}" / "model" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    files.feel()
    outcome = files.run("--resume", "--set", f"stop.maxSteps={good + 1}").assert_well()
    assert f"warning: The checkpoint of step {good} was skipped: model/model.safetensors has" in outcome.out
    assert f"resumed from step {older}" in outcome.out
    files.assert_nothing_lost_or_twice()
