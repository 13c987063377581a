import math

import pytest

from rl_trainer.observe.metrics import PARTS, StepRecord
from rl_trainer.observe.where import LAST_STEPS, where


def record(step, **fields):
    return StepRecord(step=step, time=float(step), reward_mean=0.0, **{"wall_seconds": 2.0, **fields})


def test_parts_of_the_last_steps_are_told_the_longest_first():
    early = [record(step, wall_seconds=50.0, time_train=40.0) for step in range(10)]
    late = [
        record(step, time_train=0.5, time_generate=1.0, time_values=0.0, time_lease=3.0)
        for step in range(10, 10 + LAST_STEPS)
    ]
    found = where([*early, *late])
    assert (found.steps, found.seconds, found.predicted, found.off) == (LAST_STEPS, 2.0, None, None)
    assert [(part.label, part.seconds, part.share) for part in found.parts] == [
        ("waiting for devices", 3.0, 1.5),
        ("decoding answers", 1.0, 0.5),
        ("training", 0.5, 0.25),
    ]


def test_a_plan_is_held_against_the_steps_that_it_was_made_for():
    steps = [record(1, time_train=1.0, wall_seconds=9.0)]
    steps += [record(step, time_train=1.0, predicted_seconds=2.0, wall_seconds=1.0 + step) for step in (1, 2)]
    found = where(steps)
    assert (found.planned, found.predicted, found.measured) == (2, 2.0, 2.5)
    assert found.off == pytest.approx(0.25)


def test_nothing_is_said_where_nothing_was_measured():
    assert where([]) is None
    assert where([record(1)]) is None
    assert where([record(1, wall_seconds=math.nan, time_train=1.0)]) is None


def test_every_part_has_words():
    assert len(where([record(1, **{f"time_{part}": 1.0 for part in PARTS})]).parts) == len(PARTS)
