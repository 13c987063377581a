from __future__ import annotations

import json
import math

from rl_api import RunSpec
from rl_trainer.observe.metrics import StepRecord
from rl_trainer.run.counters import Counters

SPEC = RunSpec.model_validate(
    {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "stop": {"maxSteps": 50},
    }
)


def record(**values: float) -> StepRecord:
    """A step's record with these values."""
    return StepRecord(**{"step": 4, "time": 0.0, "wall_seconds": 0.1, "reward_mean": 0.0} | values)  # type: ignore[arg-type]


def test_progress_is_rounded_as_people_read_it():
    counters = Counters(step=4, heldout=0.41500001)
    counters.saw_step(0.12345, 0.3)
    shown = counters.progress(
        SPEC,
        record(
            reward_mean=0.123456, tokens_per_second=2001.7994012858544, staleness_mean=0.987, buffer_fill=64
        ),
    )
    assert (shown.reward, shown.heldout_score, shown.tokens_per_second) == (0.123, 0.415, 2002)
    assert (shown.buffer_fill, shown.staleness, shown.eta_seconds) == (0.25, 0.99, 6)
    assert (shown.step, shown.max_steps) == (4, 50)


def test_what_is_not_known_is_null():
    shown = Counters(step=1).progress(SPEC, record(reward_mean=math.nan, tokens_per_second=math.nan))
    assert (shown.reward, shown.heldout_score, shown.tokens_per_second, shown.eta_seconds) == (None,) * 4
    json.loads(shown.model_dump_json())


def test_counters_come_back_from_a_checkpoint():
    counters = Counters(step=7, heldout=0.5)
    counters.saw_step(0.1, 0.25)
    counters.saw_step(0.1, 0.75)
    again = Counters.load(json.loads(json.dumps(counters.dump())))
    assert (again.step, again.heldout, list(again.rewards)) == (7, 0.5, [0.25, 0.75])
    assert (again.resumed_from, again.checkpointed_step) == (7, 7)
