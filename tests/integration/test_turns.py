"""Samplers on learners' devices: the same weights as on devices of their own, one at a time on each, and a lease that
ends with its holder."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from training_runs import GROUP, PROMPTS, REWARD_RULE, RunFiles, meanwhile

from rl_trainer.observe.step_times import uncovered
from rl_trainer.observe.timeline import Span, read_timeline

pytestmark = pytest.mark.usefixtures("local_ray")

ONE_GROUP_AT_A_TIME = {
    "replicas": 2,
    "maxSequences": GROUP,
    "maxNewTokens": 20,
    "resources": {"cpu": 0.5},
}
# Of the second step the first group of sampler 0 is not answered before the other one has begun its fifth: after 9 and 11,
# by which a quarter is there, what is left to it, 10, 12 and 13.
SLOW = """
import time
from pathlib import Path

def reward(prompt, completion, answer):
    fifth = Path(__file__).parent / "fifth"
    if prompt["index"] == 13:
        fifth.touch()
    while prompt["index"] == 8 and not fifth.exists():
        time.sleep(0.02)
    return len(set(completion)) / 6
"""
# Whoever asks first for the reward of a chosen prompt says who it is, and is not answered.
HELD = """
import os, time
from pathlib import Path

def reward(prompt, completion, answer):
    held = Path(__file__).parent / "held"
    if prompt["index"] == 2 and not held.exists():
        new = held.with_suffix(".new")
        new.write_text(str(os.getppid()))
        new.replace(held)
        time.sleep(3600)
    return len(set(completion)) / 6
"""


def weights(files: RunFiles) -> list[bytes]:
    """The trained policy, bit by bit, in however many files."""
    return [path.read_bytes() for path in sorted((files.out / "final").glob("*.safetensors"))]


def test_strictly_on_policy_the_weights_are_the_same_wherever_samplers_are(tmp_path: Path):
    """Checkpoints after each step, for which learners claim while samplers decode already."""
    two: dict[str, Any] = {
        "learner": {"replicas": 2},
        "sampler": {"replicas": 2, "resources": {"cpu": 0.5}},
        "checkpoint": {"everySteps": 1},
        "task": {"evaluation": {"samples": 4, "everySteps": 2}},
        "stop": {"maxSteps": 3},
    }
    apart = RunFiles(tmp_path / "apart", **two)
    apart.run().assert_well()
    expected, scores = weights(apart), apart.events("evaluation")
    assert expected
    for name, placement in {
        "drain": {"mode": "collocated", "handOver": "drain"},
        "interrupt": {"mode": "collocated", "handOver": "interrupt", "residency": "swap"},
        "hybrid": {"mode": "hybrid", "sharedSamplers": 1},
    }.items():
        files = RunFiles(tmp_path / name, placement=placement, **two)
        files.run().assert_well()
        assert weights(files) == expected, name
        assert [(e["step"], e["score"]) for e in files.events("evaluation")] == [
            (e["step"], e["score"]) for e in scores
        ]
        spans = read_timeline(files.out / "timeline.json")
        waits = {span.actor for span in spans if span.name == "lease"}
        for actor, what, way in (
            ("sampler 0", "put", "inline"),
            ("learner 1", "fetch", "inline"),
            ("learner 0", "publish", "objectStore"),
            ("sampler 1", "load weights", "objectStore"),
        ):
            assert travelled(spans, actor, what) == {way}, name
        moved = {span.actor for span in spans if span.name == "offload" and span.args["bytes"] > 0}
        assert len(moved) == (4 if name == "interrupt" else 0)
        assert waits >= {"driver", "sampler 0"}, name
        assert ("sampler 1" in waits) is (name != "hybrid")


def test_what_a_shared_sampler_has_begun_goes_on_with_the_other_one(tmp_path: Path):
    """Learners begin with each group as it comes, while the sampler on their device has another one under way: the same
    tokens as on devices of their own, and weights that differ by rounding."""
    hybrid: dict[str, Any] = {"mode": "hybrid", "sharedSamplers": 1, "partGroups": 1}
    made = []
    for placement in ({"partGroups": 1}, hybrid):
        files = RunFiles(
            tmp_path / placement.get("mode", "apart"),
            placement=placement,
            # Of three prompts every other step begins with one of either sampler.
            algorithm={"optimizer": {"epsilon": 1e-4}, "promptsPerStep": 3},
            sampler=ONE_GROUP_AT_A_TIME,
            stop={"maxSteps": 12},
        )
        files.run().assert_well()
        files.assert_nothing_lost_or_twice()
        made.append(files)
    apart, shared = made
    assert handed_over(shared) > 0
    assert handed_over(apart) == 0
    for found, expected in zip(shared.steps, apart.steps, strict=True):
        assert (found.prompts, found.completion_tokens) == (expected.prompts, expected.completion_tokens)
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    before = load_file(apart.out / "final" / "model.safetensors")
    for name, value in load_file(shared.out / "final" / "model.safetensors").items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-5, msg=name)


def test_a_hybrid_run_that_runs_ahead_loses_nothing(tmp_path: Path):
    """The shared sampler helps with half of each batch. Whether it has a group under way just then is up to the clock."""
    files = RunFiles(
        tmp_path,
        placement={"mode": "hybrid", "sharedSamplers": 1, "partGroups": 2, "handOverAt": 0.5},
        sampler=ONE_GROUP_AT_A_TIME,
        buffer={"maxStaleness": 1},
        stop={"maxSteps": 10},
    )
    files.run().assert_well()
    files.assert_nothing_lost_or_twice()
    assert max(step.staleness_max for step in files.steps) <= 1


def test_a_sampler_whose_help_is_not_needed_hands_over_what_it_has_under_way(tmp_path: Path):
    """Strictly on-policy, a quarter of the batch being there; learners want the device when all of it is."""
    files = RunFiles(
        tmp_path,
        placement={"mode": "hybrid", "sharedSamplers": 1, "handOverAt": 0.25},
        algorithm={"promptsPerStep": 8},
        sampler=ONE_GROUP_AT_A_TIME,
        stop={"maxSteps": 4},  # a sampler's spans come with its next group
    )
    (tmp_path / "moody_reward.py").write_text(SLOW)
    files.run().assert_well()
    files.assert_nothing_lost_or_twice()
    assert handed_over(files) > 0
    spans = read_timeline(files.out / "timeline.json")
    assert travelled(spans, "sampler 0", "hand over") == {"inline"}
    first = min(span.end for span in spans if span.name == "hand over" and span.args["bytes"])
    taken = min(end for begin, end in of(spans, "sampler 1", "fetch") if begin > first)
    learning = [begin for begin, _ in of(spans, "learner 0", "train") if first < begin < taken]
    assert not learning, "the other one goes on with it before learners come"


def handed_over(files: RunFiles) -> int:
    """How many groups went from the sampler that shares its device to the other one."""
    spans = [span for span in read_timeline(files.out / "timeline.json") if span.name == "hand over"]
    assert {span.actor for span in spans} <= {"sampler 0"}
    return sum(span.args["groups"] for span in spans)


def travelled(spans: list[Span], actor: str, name: str) -> set[str]:
    """The ways of what went with such spans; there is something."""
    found = [span.args for span in spans if (span.actor, span.name) == (actor, name)]
    assert sum(args["bytes"] for args in found) > 0, f"{actor}: no bytes of {name}"
    return {args["way"] for args in found if args["bytes"]}


def test_learners_interrupt_a_sampler_that_runs_ahead_and_nobody_computes_beside_another(tmp_path: Path):
    files = RunFiles(
        tmp_path,
        placement={"mode": "collocated"},
        buffer={"maxStaleness": 2},
        task={"evaluation": {"samples": 8, "everySteps": 5}},
        stop={"maxSteps": 25},
    )
    files.run().assert_well()
    assert [step.step for step in files.steps if step.heldout_score is not None] == [5, 10, 15, 20, 25]
    files.assert_nothing_lost_or_twice()
    rewards = [step.reward_mean for step in files.steps]
    # Before the first update 0.73 of 1, and 0.8 to 1 from the second step on.
    assert fmean(rewards[-5:]) > rewards[0] + 0.1, "it does not learn"
    assert max(step.staleness_max for step in files.steps) > 0
    spans = read_timeline(files.out / "timeline.json")
    sampling = of(spans, "sampler 0", "generate", "score", "load weights")
    learning = of(spans, "learner 0", "train", "publish")
    assert len(sampling) > 25
    assert len(learning) > 50
    busy = sum(end - start for start, end in learning)
    beside = busy - sum(uncovered(start, end, sampling) for start, end in learning)
    assert beside <= 0.01 * busy


def of(spans: list[Span], actor: str, *names: str) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in spans if span.actor == actor and span.name in names]


@pytest.mark.parametrize(
    ("stops", "said", "seconds"), [(False, "died", 60.0), (True, "gave no sign of life", 150.0)]
)
def test_a_sampler_that_dies_with_a_device_leaves_it_to_who_waits(
    stops: bool, said: str, seconds: float, tmp_path: Path
):
    """Two learner processes need both devices; one of the samplers holds its own, and is killed, or stands still until the
    driver kills it."""
    files = RunFiles(
        tmp_path,
        placement={"mode": "collocated", "handOver": "drain"},
        task={"rewards": [REWARD_RULE | {"timeout": "1h"}]},
        learner={"replicas": 2},
        sampler={"replicas": 2},
        buffer={"maxStaleness": 1},
        retry={"livenessTimeout": "30s"},
        # What waits goes out first: the prompt is another's before step 3 ends, and trained on in step 4 at the latest.
        stop={"maxSteps": 4},
    )
    (tmp_path / "moody_reward.py").write_text(HELD)
    killed: list[float] = []
    holders: list[psutil.Process] = []

    def kill() -> None:
        holder = psutil.Process(int((tmp_path / "held").read_text()))
        assert "SamplerActor" in "".join(holder.cmdline())
        killed.append(time.time())
        holders.append(holder)
        holder.suspend() if stops else holder.kill()

    with meanwhile((tmp_path / "held").exists, kill):
        outcome = files.run().assert_well()
    assert f"{said} and was replaced; its" in outcome.out
    assert not holders[0].is_running()
    files.assert_nothing_lost_or_twice()
    assert 2 in [prompt for step in files.steps for prompt in step.prompts][: 4 * PROMPTS]
    # A sampler that came first with other prompts may have filled a batch before: learners had a turn then.
    learning = of(read_timeline(files.out / "timeline.json"), "learner 0", "train")
    after = [start for start, end in learning if end > killed[0]]
    assert after, "learners could not begin"
    assert killed[0] < after[0] < killed[0] + seconds, "learners could not begin"
