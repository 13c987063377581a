"""Whole runs: the same every time, and the same when they were killed in between."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from training_runs import GROUP, PROMPTS, RunFiles, ray_here

from rl_api import load_run
from rl_api.planner.forecast import Forecast
from rl_api.planner.plan import Alternative
from rl_trainer.checkpoint.inspection import inspect_folder
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.run import planning
from rl_trainer.run.forecasting import Forecasting

pytestmark = pytest.mark.usefixtures("local_ray")

STEPS = 8


def two_samplers(folder: Path, **changes: object) -> RunFiles:
    return RunFiles(folder, sampler={"replicas": 2}, stop={"maxSteps": STEPS}, **changes)


def trained(files: RunFiles, *options: str) -> RunFiles:
    files.run(*options).assert_well()
    return files


@pytest.fixture(scope="module")
def uninterrupted(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    return trained(two_samplers(tmp_path_factory.mktemp("uninterrupted")))


def curves(files: RunFiles) -> list[tuple[object, ...]]:
    """Everything measured that is not a time."""
    return [
        (r.step, r.reward_mean, r.reward_std, r.loss, r.grad_norm, r.entropy, r.completion_tokens, r.prompts)
        for r in files.steps
    ]


def test_the_same_run_twice_is_the_same_bit_by_bit(uninterrupted: RunFiles, tmp_path: Path):
    """Also where weights are broadcast to the samplers, none of which had to take them another way."""
    again = two_samplers(tmp_path, weightSync={"transport": "collective"})
    assert "not broadcast" not in again.run().assert_well().out
    assert curves(again) == curves(uninterrupted)
    assert again.weights == uninterrupted.weights
    assert len({r.reward_mean for r in again.steps}) > 1, "a run without any change proves nothing"
    assert again.weights != (again.out / "initial" / "model.safetensors").read_bytes()
    assert {r.staleness_max for r in again.steps} == {0}


def test_weights_out_of_the_learners_memory_are_the_same_bit_by_bit(uninterrupted: RunFiles, tmp_path: Path):
    """One of two samplers takes turns on the learner's device; both map the learner's memory, and nothing goes through the
    object store."""
    hybrid = {"mode": "hybrid", "sharedSamplers": 1}
    again = trained(two_samplers(tmp_path, weightSync={"transport": "ipc"}, placement=hybrid))
    assert curves(again) == curves(uninterrupted)
    assert again.weights == uninterrupted.weights
    assert {r.weights_bytes for r in uninterrupted.steps} != {0}
    assert {r.weights_bytes for r in again.steps} == {0}


def test_a_placement_that_changes_under_way_changes_nothing_else(
    uninterrupted: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One of two samplers moves to the learner's device, in the same command; the run is the same bit by bit."""
    hybrid = Alternative(
        mode="hybrid",
        samplers=2,
        shared=1,
        learners=1,
        part_groups=PROMPTS,
        hand_over="drain",
        predicted_step_seconds=0.5,
        generating=0.25,
        learning=0.25,
    )
    monkeypatch.setattr(Forecasting, "result", lambda self: (Forecast(1.0, hybrid), 0.1))
    monkeypatch.setattr(Forecasting, "done", lambda self: True)
    monkeypatch.setattr(planning, "NEAR", math.inf)
    monkeypatch.setattr(planning, "EVERY_STEPS", 1)
    monkeypatch.setattr(planning, "SHARE", math.inf)
    moved = two_samplers(tmp_path, placement={"replan": {"steps": 2}})
    said = moved.run().assert_well().out
    assert said.count("the run goes on with it from its next checkpoint") == 1
    attempts = [json.loads(line) for line in (moved.out / "attempts.jsonl").read_text().splitlines()]
    ended = [one["reason"] for one in attempts if one["event"] == "ended"]
    assert ended == ["PlacementChanged", "done"]
    assert load_run(moved.out / "run.yaml").spec.shared_samplers == 1
    assert curves(moved) == curves(uninterrupted)
    assert moved.weights == uninterrupted.weights
    # What was forecast is held against the steps that it was made for.
    assert {r.predicted_seconds for r in moved.steps if not math.isnan(r.predicted_seconds)} == {1.0}
    assert "Planned were" in (moved.out / "report.html").read_text()


def test_another_seed_is_another_run(uninterrupted: RunFiles, tmp_path: Path):
    other = trained(two_samplers(tmp_path), "--set", "seed=2", "--set", "stop.maxSteps=2")
    assert [r.reward_mean for r in other.steps] != [r.reward_mean for r in uninterrupted.steps[:2]]


def test_killed_and_resumed_is_the_uninterrupted_run_bit_by_bit(uninterrupted: RunFiles, tmp_path: Path):
    """Also where the same prompts come from parquet shards, of several row groups each: every one once; and where learners
    write a checkpoint while the next step runs."""
    written = {"everySteps": 2, "asynchronous": "always"}
    files = two_samplers(tmp_path, task={"file": "shards"}, checkpoint=written)
    files.shards()
    # Of eight steps it does six, however late it is killed.
    files.feel({6 * PROMPTS: "holdFirst"}, delay=0.05)
    with files.start(**ray_here()) as process:
        process.wait_for(lambda: len(files.steps) >= 5 and files.checkpoints[-1:] >= [4])
        process.kill()
    assert files.checkpoints[-1] in (4, 6)
    files.feel()
    outcome = files.run("--resume").assert_well()
    resumed_from = files.summary["resumed_from"]
    assert f"resumed from step {resumed_from}" in outcome.out
    assert resumed_from in (4, 6)
    assert files.weights == uninterrupted.weights
    assert curves(files) == curves(uninterrupted)
    assert [prompt for r in files.steps for prompt in r.prompts] == list(range(STEPS * PROMPTS))
    files.assert_nothing_lost_or_twice()
    # A checkpoint names the one before it, also where a kill lies between.
    kept = CheckpointStore(files.out / "checkpoints", read_only=True).list()
    assert len(kept) > 1
    for before, after in itertools.pairwise(kept):
        parent = {"step": before.step, "digest": before.digest}
        assert after.metadata["lineage"] == before.metadata["lineage"] | {"parent": parent}
        assert inspect_folder(after.path).problems == ()


def test_asynchronous_run_keeps_its_bound_and_loses_nothing_when_killed(tmp_path: Path):
    files = two_samplers(tmp_path, buffer={"maxStaleness": 2})
    # Of fourteen steps it does ten at most, however late it is killed.
    files.feel(dict.fromkeys(range(10 * PROMPTS, 14 * PROMPTS), "holdFirst"), delay=0.03)
    with files.start("--set", "stop.maxSteps=14", **ray_here()) as process:
        process.wait_for(lambda: len(files.steps) >= 5)
        process.kill()
    files.feel()
    files.run("--resume", "--set", "stop.maxSteps=14").assert_well()
    assert len(files.steps) == 14
    assert max(r.staleness_max for r in files.steps) in (1, 2)
    assert files.steps[-1].groups_dropped == {}
    assert files.summary["groups_trained"] == 14 * PROMPTS
    assert sum(r.samples_per_second * r.wall_seconds for r in files.steps) == pytest.approx(
        14 * PROMPTS * GROUP
    )
    files.assert_nothing_lost_or_twice()


def test_a_run_with_critic_and_adapters_goes_on_bit_by_bit_and_says_how_it_does(tmp_path: Path):
    changes = {
        "learner": {"lora": {"rank": 4}},
        "weightSync": {"transport": "adapter"},
        "algorithm": {"name": "ppo", "groupSize": 1, "promptsPerStep": 4, "critic": {"learningRate": 1e-2}},
        "stop": {"maxSteps": 4},
    }
    straight = trained(RunFiles(tmp_path / "straight", **changes))
    parts = trained(RunFiles(tmp_path / "parts", **changes), "--set", "stop.maxSteps=2")
    parts.run("--resume", "--set", "stop.maxSteps=4").assert_well()
    assert parts.summary["resumed_from"] == 2
    assert parts.weights == straight.weights
    assert parts.critic == straight.critic
    assert parts.adapter == straight.adapter
    critic = [(r.value_loss, r.value_mean, r.return_mean, r.explained_variance) for r in straight.steps]
    assert [(r.value_loss, r.value_mean, r.return_mean, r.explained_variance) for r in parts.steps] == critic
    assert critic[0][1] == 0.0
    assert len(set(critic)) == 4
    assert "Explained variance" in (straight.out / "report.html").read_text()
