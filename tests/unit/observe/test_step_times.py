import pytest

from rl_trainer.observe.step_times import computing_seconds, rates, step_times, turns, uncovered, use
from rl_trainer.observe.timeline import MEASURED, Span


def test_a_step_is_split_by_who_worked():
    spans = [
        Span("driver", "wait", 0.0, 10.0),
        Span("sampler 0", "generate", 1.0, 5.0),
        Span("sampler 0", "score", 5.0, 6.0),
        Span("sampler 1", "generate", 1.0, 3.0),
        Span("sampler 1", "generate", 3.0, 7.0),
        Span("learner 0", "train", 10.0, 12.0),
        Span("learner 1", "fetch", 10.0, 10.25),
        Span("learner 1", "train", 10.25, 13.0),
        Span("sampler 1", "fetch", 2.0, 2.5),
        Span("learner 0", "log probs", 8.0, 9.5),
        Span("learner 1", "values", 9.5, 10.0),
        Span("driver", "lease", 7.0, 7.25),
        Span("sampler 0", "lease", 0.0, 1.0),
        Span("sampler 1", "lease", 0.0, 0.5),
        Span("learner 0", "onload", 7.25, 7.75),
        Span("sampler 0", "offload", 6.5, 7.0),
        Span("driver", "publish", 13.0, 13.5),
        Span("driver", "evaluate", 14.0, 16.0),
    ]
    assert step_times(spans) == {
        "time_generate": 5.0,
        "time_score": 1.0,
        "time_log_probs": 1.5,
        "time_values": 0.5,
        "time_lease": 1.0,
        "time_switch": 1.0,
        "time_train": 3.0,
        "time_publish": 0.5,
        "time_evaluate": 2.0,
        "time_environment": 0.0,
        "time_judge": 0.0,
        "time_wait": 4.0,
    }
    assert set(step_times([]).values()) == {0.0}


def test_what_the_driver_waits_for_while_no_sampler_works_is_told_apart():
    spans = [
        Span("driver", "wait", 0.0, 10.0),
        Span("sampler 0", "generate", 0.0, 3.0),
        Span("environments of sampler 0", "environment", 2.0, 4.0),
        Span("reward models of sampler 0", "judge", 1.0, 6.0),
        Span("environments of sampler 1", "environment", 5.0, 5.5),
        Span("reward models of sampler 1", "judge", 9.0, 12.0),
    ]
    found = step_times(spans)
    assert (found["time_environment"], found["time_judge"], found["time_wait"]) == (1.5, 2.5, 3.0)


def test_what_actors_took_of_their_nodes_and_of_the_store():
    spans = [
        Span(
            "sampler 0",
            MEASURED,
            0.0,
            0.0,
            {"cpu_seconds": 6.0, "wall_seconds": 4.0, "memory": 3e9, "gpu_busy": 0.5},
        ),
        Span(
            "sampler 1",
            MEASURED,
            0.0,
            0.0,
            {"cpu_seconds": 2.0, "wall_seconds": 4.0, "memory": 2e9, "gpu_busy": 0.75},
        ),
        Span("learner 0", MEASURED, 0.0, 0.0, {"cpu_seconds": 3.0, "wall_seconds": 6.0, "memory": 5e9}),
        Span("driver", MEASURED, 0.0, 0.0, {"cpu_seconds": 1.0, "wall_seconds": 10.0, "memory": 1e9}),
        Span("learner 0", "publish", 0.0, 1.0, {"version": 3, "bytes": 800}),
        Span("driver", "publish", 1.0, 2.0, {"version": 3}),
        Span("sampler 0", "load weights", 2.0, 3.0, {"bytes": 800}),
        Span("sampler 1", "load weights", 2.0, 3.0, {"bytes": 400}),
    ]
    assert use(spans) == {
        "sampler_cpus": 1.0,
        "learner_cpus": 0.5,
        "driver_cpus": 0.1,
        "sampler_gpu_busy_ratio": 0.625,
        "sampler_memory_bytes": 3e9,
        "learner_memory_bytes": 5e9,
        "weights_bytes": 800,
        "received_bytes": 600,
    }
    assert use([]) == {}


def test_operations_per_second_are_those_of_one_actor_while_it_computes():
    spans = [
        Span("sampler 0", "generate", 0.0, 4.0),
        Span("sampler 1", "generate", 0.0, 1.0),
        Span("sampler 0", "score", 4.0, 9.0),
        Span("learner 0", "log probs", 5.0, 6.0),
        Span("learner 0", "train", 6.0, 8.0),
        Span("learner 1", "train", 6.0, 7.0),
    ]
    seconds = computing_seconds(spans)
    assert seconds == {"sampler": 5.0, "learner": 4.0}
    both = {"sampler": 10e9, "learner": 8e9}
    assert rates([(both, seconds)]) == {"sampler_flops": 2e9, "learner_flops": 2e9}
    assert rates([({"learner": 8e9}, seconds)]) == {"learner_flops": 2e9}, "a server decodes"
    assert rates([(both, computing_seconds(spans[:3]))]) == {"sampler_flops": 2e9}
    assert rates([({}, seconds)]) == rates([]) == {}


def test_groups_that_ended_together_may_be_trained_on_in_several_steps():
    """Two groups of 8 seconds, of which the first one to come has all spans: one step each."""
    steps = [({"sampler": 8e9}, {"sampler": 8.0}), ({"sampler": 8e9}, {"sampler": 0.0})]
    assert rates(steps) == {"sampler_flops": 2e9}


def test_turns_are_those_of_every_group():
    spans = [
        Span("sampler 0", MEASURED, 0.0, 0.0, {"turns": 12}),
        Span("sampler 1", MEASURED, 0.0, 0.0, {"turns": 5}),
        Span("sampler 0", "generate", 0.0, 1.0, {"turns": 100}),
        Span("driver", MEASURED, 0.0, 0.0, {"cpu_seconds": 1.0}),
    ]
    assert turns(spans) == 17


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
