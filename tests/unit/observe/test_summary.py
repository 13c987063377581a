import json
import math

import pytest

from rl_trainer.observe.metrics import MetricsWriter, StepRecord
from rl_trainer.observe.summary import summarize, write_summary

RECORDS = [
    StepRecord(
        step=1,
        time=10.0,
        wall_seconds=2.0,
        reward_mean=0.25,
        samples_per_second=8.0,
        completion_tokens=100,
        time_generate=1.0,
        time_train=0.5,
        staleness_max=0,
        groups_trained=4,
        zero_variance_groups=1,
    ),
    StepRecord(
        step=2,
        time=13.0,
        wall_seconds=3.0,
        reward_mean=0.5,
        samples_per_second=16 / 3,
        completion_tokens=300,
        time_generate=1.5,
        time_train=1.0,
        staleness_max=2,
        groups_trained=8,
        groups_dropped={"reward_error": 3},
        zero_variance_groups=2,
        skipped_steps=1,
    ),
]


def test_the_summary_adds_up_the_steps():
    summary = summarize(RECORDS, [(0, 0.25), (1, 0.75), (2, 0.5)], name="run", seed=3, stop_reason="maxSteps")
    assert summary == {
        "name": "run",
        "seed": 3,
        "stop_reason": "maxSteps",
        "steps": 2,
        "heldout_start": 0.25,
        "heldout_end": 0.5,
        "best_heldout": 0.75,
        "best_heldout_step": 1,
        "heldout_curve": [[0, 0.25], [1, 0.75], [2, 0.5]],
        "reward_curve": [0.25, 0.5],
        "completion_tokens_per_second": 80.0,
        "samples_per_second": pytest.approx(32 / 5),
        "completion_tokens": 400,
        "wall_seconds": 5.0,
        "time_breakdown": {
            "generate": 2.5,
            "score": 0.0,
            "log_probs": 0.0,
            "values": 0.0,
            "train": 1.5,
            "publish": 0.0,
            "environment": 0.0,
            "judge": 0.0,
            "wait": 0.0,
            "lease": 0.0,
            "switch": 0.0,
            "evaluate": 0.0,
        },
        "groups_trained": 8,
        "groups_dropped": {"reward_error": 3},
        "zero_variance_groups": 3,
        "skipped_steps": 1,
        "max_staleness_seen": 2,
        "resumed_from": None,
    }


def test_a_run_without_steps_or_evaluation_has_a_summary():
    summary = summarize([], [], name="run", seed=1, stop_reason="interrupted", wall_seconds=1.5)
    assert summary["steps"] == 0
    assert summary["heldout_start"] is None
    assert summary["completion_tokens_per_second"] == 0.0
    assert summary["wall_seconds"] == 1.5


def test_the_file_is_strict_json_and_says_where_the_run_was_resumed(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.event("evaluation", step=0, score=0.125)
        writer.write(RECORDS[0])
        writer.write(StepRecord(step=2, time=1.0, wall_seconds=1.0, reward_mean=math.nan))
    returned = write_summary(
        tmp_path, name="run", seed=1, stop_reason="maxSteps", resumed_from=1, wall_seconds=math.inf
    )
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == returned
    assert returned["resumed_from"] == 1
    assert returned["reward_curve"] == [0.25, None]
    assert returned["heldout_start"] == 0.125
    assert returned["wall_seconds"] is None
    assert list(tmp_path.glob(".*")) == []
    with MetricsWriter(tmp_path) as writer:
        writer.event("resumed", step=2)
    found = write_summary(tmp_path, name="run", seed=1, stop_reason="maxSteps", wall_seconds=1.0)
    assert found["resumed_from"] == 2
