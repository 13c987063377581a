import pytest

from rl_trainer.observe.step_times import step_times, uncovered
from rl_trainer.observe.timeline import Span


def test_a_step_is_split_by_who_worked():
    spans = [
        Span("driver", "wait", 0.0, 10.0),
        Span("sampler 0", "generate", 1.0, 5.0),
        Span("sampler 0", "score", 5.0, 6.0),
        Span("sampler 1", "generate", 1.0, 3.0),
        Span("sampler 1", "generate", 3.0, 7.0),
        Span("learner 0", "train", 10.0, 12.0),
        Span("learner 1", "train", 10.0, 13.0),
        Span("driver", "publish", 13.0, 13.5),
        Span("driver", "evaluate", 14.0, 16.0),
    ]
    assert step_times(spans) == {
        "time_generate": 5.0,
        "time_score": 1.0,
        "time_train": 3.0,
        "time_publish": 0.5,
        "time_evaluate": 2.0,
        "time_wait": 4.0,
    }
    assert set(step_times([]).values()) == {0.0}


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], 10.0),
        ([(0.0, 10.0)], 0.0),
        ([(-5.0, 2.0), (8.0, 20.0)], 6.0),
        ([(1.0, 4.0), (2.0, 3.0)], 7.0),
        ([(20.0, 30.0), (-3.0, -1.0)], 10.0),
    ],
)
def test_time_that_no_interval_covers(others, left):
    assert uncovered(0.0, 10.0, others) == left
