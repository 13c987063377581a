"""Seconds in which nobody works, where samplers run ahead: by hand."""

from __future__ import annotations

import pytest

from rl_api.run import RunSpec
from rl_trainer.observe.timeline import MEASURED, Span
from rl_trainer.profile.idle import Idle


def spec(staleness: int) -> RunSpec:
    return RunSpec.model_validate(
        {
            "learner": {"replicas": 2},
            "sampler": {"replicas": 2},
            "placement": {"mode": "collocated"},
            "buffer": {"maxStaleness": staleness},
        }
    )


def test_who_runs_ahead_hides_nothing_of_what_a_step_waits_for() -> None:
    """Of 8 s the learner trains and publishes 4, and 1.5 are waited for groups, of which 0.25 until the last is there."""
    spans = [
        Span("sampler 0", "generate", 0.0, 9.0),
        Span("sampler 0", MEASURED, 0.5, 0.5),
        Span("sampler 1", MEASURED, 2.25, 2.25),
        Span("sampler 1", MEASURED, 7.0, 7.0),  # of the next step
        Span("driver", "wait", 1.0, 2.5),
        Span("learner 0", "train", 3.0, 6.0),
        Span("learner 1", "train", 3.0, 6.5),
        Span("driver", "publish", 6.5, 7.5),
    ]
    found = Idle(spec(1)).overhead(spans, (0.0, 8.0))
    assert found == pytest.approx(1.0 + 0.5 + 0.5 + 0.25)
    there = [span for span in spans if span.end != 2.25]  # all were there before anybody waited
    assert Idle(spec(1)).overhead(there, (0.0, 8.0)) == pytest.approx(2.0)


def test_a_wait_that_is_told_of_steps_later_is_held_against_the_work_of_its_time() -> None:
    """Each step of 10 s: learners have the device from 4 to 9. Samplers tell of their wait for it a step later."""
    idle = Idle(spec(1))

    def step(number: int) -> list[Span]:
        at = 10.0 * number
        return [
            Span("sampler 0", "lease", at - 6.0, at - 0.75),  # the device is free at at - 1
            Span("sampler 0", "generate", at - 0.75, at + 3.5),
            Span("sampler 1", "generate", at - 0.75, at + 3.0),
            Span("driver", "lease", at + 3.0, at + 4.0),
            Span("learner 0", "train", at + 4.0, at + 7.0),
            Span("learner 0", "publish", at + 8.0, at + 9.0),
        ]

    found = [idle.wakes(step(number)) for number in range(7)]
    assert found[:4] == [[]] * 4, "what happens around a step is not known yet"
    for wakes in found[4:]:
        assert wakes == [("sampler", pytest.approx(0.25)), ("learner", pytest.approx(0.5))]


def test_company_is_of_others_that_compute_at_the_time() -> None:
    """In step, and where a sampler decodes for 2 of the 4 s of a learner's, which is told of a step later."""
    idle = Idle(spec(0))
    step = [
        Span("sampler 0", "generate", 0.0, 1.0),
        Span("sampler 1", "generate", 0.0, 3.0),
        Span("learner 0", "train", 2.0, 6.0),
        Span("learner 1", "train", 2.0, 6.0),
        Span("driver", "publish", 0.0, 9.0),
    ]
    idle.wakes(step)
    assert idle.company() == {"sampler": (4.0, 4.0), "learner": (10.0, 8.0)}
    ahead = Idle(spec(1))
    for number in range(7):
        at = 10.0 * number
        late = [Span("sampler 0", "generate", at - 5.0, at - 3.0)]
        ahead.wakes([*late, Span("learner 0", "train", at + 4.0, at + 8.0)])
        expected = {"sampler": (2.0, 2.0), "learner": (2.0, 4.0)} if number >= 4 else {}
        assert ahead.company() == expected


def test_in_step_a_wait_is_what_nobodys_work_covers() -> None:
    spans = [
        Span("sampler 0", "generate", 0.0, 3.5),
        Span("driver", "lease", 3.0, 4.0),
        Span("learner 0", "train", 4.0, 6.0),
        Span("sampler 0", "lease", 5.0, 6.25),
    ]
    assert Idle(spec(0)).wakes(spans) == [("learner", pytest.approx(0.5)), ("sampler", pytest.approx(0.25))]
