from __future__ import annotations

import signal

import pytest

from rl_api import StopSpec
from rl_api.errors import TrainingDiverged
from rl_trainer.run.stopping import StopRequest, check_divergence, stop_reason


def reason(stop: dict[str, object], **state: object) -> str | None:
    now = {"step": 5, "elapsed": 10.0, "rewards": [0.5] * 5, "heldout": None, "evaluated": False} | state
    return stop_reason(StopSpec.model_validate(stop), **now)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stop", "state", "expected"),
    [
        ({"maxSteps": 6}, {}, None),
        ({"maxSteps": 5}, {}, "maxSteps"),
        ({"maxSteps": 9, "maxDuration": "10s"}, {}, "maxDuration"),
        ({"maxSteps": 9, "maxDuration": "11s"}, {}, None),
        ({"maxSteps": 9, "targetReward": 0.4}, {}, None),  # too few steps for a mean
        ({"maxSteps": 9, "targetReward": 0.4}, {"rewards": [0.0, *[0.5] * 10]}, "targetReward"),
        ({"maxSteps": 9, "targetReward": 0.6}, {"rewards": [0.5] * 10}, None),
        ({"maxSteps": 9, "targetReward": 0.8}, {"evaluated": True, "heldout": 0.8}, "targetReward"),
        ({"maxSteps": 9, "targetReward": 0.4}, {"evaluated": True, "rewards": [1.0] * 10}, None),
        ({"maxSteps": 5, "targetReward": 0.8}, {"evaluated": True, "heldout": 0.9}, "targetReward"),
    ],
)
def test_a_run_ends_for_the_first_reason_that_holds(
    stop: dict[str, object], state: dict[str, object], expected: str | None
):
    assert reason(stop, **state) == expected


def test_three_skipped_steps_in_a_row_end_the_run_with_advice():
    check_divergence(2)
    with pytest.raises(TrainingDiverged, match=r"3 steps in a row; lower algorithm\.learningRate"):
        check_divergence(3)


def test_a_signal_asks_for_a_stop_and_tells_the_exit_code():
    request = StopRequest()
    assert not request.requested
    request.request(signal.SIGTERM)
    assert request.requested
    assert request.exit_code == 143
