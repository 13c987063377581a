"""verl as the program of a run: its command, and the lines of its log."""

from __future__ import annotations

import json
import sys

import pytest

from rl_api import RunSpec
from rl_api.errors import InvalidConfig
from rl_trainer.observe.metrics import StepRecord
from rl_trainer.program.lines import parse_line
from rl_trainer.program.verl import verl_command

SPEC = RunSpec.model_validate(
    {
        "trainer": {"kind": "verl"},
        "model": {"source": "org/model"},
        "task": {
            "environment": "prompts",
            "file": "train.parquet",
            "rewards": [{"rule": "function", "function": "rewards:score"}],
        },
        "sampler": {"engine": "vllm"},
    }
)


def test_the_command() -> None:
    command = verl_command(SPEC, name="mine", checkpoints="/kept", gpus_per_node=4)
    assert command[:3] == (sys.executable, "-m", "verl.trainer.main_ppo")
    assert {"trainer.n_gpus_per_node=4", "trainer.default_local_dir='/kept'"} <= set(command)


def test_gpus_only() -> None:
    with pytest.raises(
        InvalidConfig, match=r"spec\.trainer\.kind: found 'verl', allowed where there are GPUs"
    ):
        verl_command(SPEC, name="mine", checkpoints="/kept", gpus_per_node=0)


def test_a_line_of_its_log() -> None:
    data = {"critic/score/mean": 0.25, "actor/entropy": 1.5, "perf/time_per_step": 3.0, "timing_s/gen": 2.0}
    line = json.dumps({"step": 4, "data": data | {"actor/pg_clipfrac": 0.1, "global_seqlen/min": 5}})
    record = parse_line(line, now=9.0, wall_seconds=1.0)
    assert isinstance(record, StepRecord)
    assert (record.step, record.time, record.wall_seconds) == (4, 9.0, 3.0)
    assert (record.reward_mean, record.entropy, record.clip_fraction) == (0.25, 1.5, 0.1)
    assert record.time_generate == 2.0
