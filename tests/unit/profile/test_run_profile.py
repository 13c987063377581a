import pytest

from rl_api.planner.cost import learn_seconds
from rl_api.planner.profile import load_profile, save_profile
from rl_api.run import RunSpec
from rl_api.task import TaskSpec
from rl_trainer.observe.timeline import MEASURED, Span
from rl_trainer.profile.meters import EngineMeter
from rl_trainer.profile.run_profile import HALF_LIFE, Measurements
from rl_trainer.trajectory import Group

SPEC = RunSpec.model_validate(
    {
        "algorithm": {"promptsPerStep": 2, "groupSize": 2},
        "sampler": {"maxNewTokens": 32, "maxSequences": 8},
        "learner": {"replicas": 2},
        "buffer": {"maxStaleness": 1},
    }
)


def group(number, lengths, prompt=10):
    return Group(number, [0.0] * len(lengths), lengths, [one + prompt for one in lengths], [False] * 2, 0)


def decoded(factor=1.0):
    """What a sampler tells whose decode step takes 4 ms, and 1 ms for each sequence."""
    meter = EngineMeter()
    for active in (1, 2, 4):
        meter.decoded(factor * (0.004 + 0.001 * active), active, 0)
    meter.prefilled(0.5, 1000)
    told = {"tool_seconds": 3.0, "weights": 400.0, "cache_bytes_per_token": 64.0, "reads_again": True}
    return Span("sampler 0", MEASURED, 0.0, 0.0, meter.drain() | told)


def learned(rank, passes, reduce, **more):
    seconds = passes + reduce + sum(more.values()) + 0.125
    numbers = {"seconds": seconds, "passes": passes, "reduce": reduce, "weights": 400.0, "moments": 1200.0}
    return Span(f"learner {rank}", MEASURED, 0.0, 0.0, numbers | more)


STEP = [
    decoded(),
    Span("sampler 0", "generate", 0.0, 5.0),
    Span("sampler 0", "score", 5.0, 5.5),
    Span("sampler 0", "load weights", 6.0, 6.25),
    Span("learner 0", "publish", 5.5, 6.0),
    Span("driver", "publish", 6.0, 6.125),
    Span("learner 0", "onload", 5.0, 5.5),
    Span("learner 1", "onload", 5.0, 5.25),
    Span("sampler 0", "wake", 6.0, 6.5),
    learned(0, 1.0, 0.75, log_probs=0.5, optimizer=0.125),
    learned(1, 1.5, 0.25, log_probs=0.25, optimizer=0.0625),
]
GROUPS = [group(0, [8, 12]), group(1, [20, 20])]


def test_what_all_actors_tell_becomes_the_profile_of_the_run():
    measurements = Measurements(SPEC)
    assert measurements.profile() is None
    measurements.step(GROUPS, STEP)
    found = measurements.profile()
    assert found.steps == 1
    assert (found.group_size, found.prompts_per_step, found.max_staleness) == (2, 2, 1)
    assert (found.devices.learner, found.devices.sampler) == (2, 1)
    assert (found.decode.base, found.decode.per_active) == (pytest.approx(0.004), pytest.approx(0.001))
    assert found.decode.slots == 8
    assert found.prefill_tokens_per_second == pytest.approx(2000)
    assert found.prompt_tokens == 10
    assert found.reads_again
    assert (found.lengths, found.limit) == ((8, 12, 20, 20), 32)
    assert found.score_seconds == pytest.approx(0.25)  # of a group
    assert found.tool_seconds == pytest.approx(0.75)  # of an answer
    share = (60 + 40) / 2  # tokens of a rank
    assert found.learner.beta == pytest.approx(1.5 / share)  # of the slowest
    assert found.learner.log_prob == pytest.approx(0.5 / share)
    assert found.learner.value == 0
    assert found.learner.all_reduce == pytest.approx(0.25)  # the slowest waits for nobody
    assert found.learner.optimizer == pytest.approx(0.125)  # which more ranks do not change
    assert found.learner.alpha == pytest.approx(0.125)
    assert found.publish_seconds == pytest.approx(0.875)
    assert found.load_seconds == pytest.approx(0.25)  # of those
    assert found.switch.learner.onload == pytest.approx(0.375)
    assert found.switch.sampler.wake == pytest.approx(0.5)
    assert (found.memory.sampler.weights, found.memory.sampler.cache_bytes_per_token) == (400, 64)
    assert (found.memory.learner.weights, found.memory.learner.moments) == (400, 1200)


def test_what_workers_of_the_task_do_keeps_no_sampler_from_decoding():
    task = {
        "environment": "gymnasium",
        "name": "FrozenLake-v1",
        "rewards": [{"rule": "task"}, {"rule": "model"}],
    }
    workers = {"simulators": {"replicas": 2}, "rewardModel": {"source": "org/judge", "replicas": 3}}
    spec = SPEC.model_copy(update={"given_task": TaskSpec.model_validate(task | workers)})

    def told(work, waits, waited, judged):
        meter = EngineMeter()
        for active in (1, 2, 4):
            meter.decoded(0.004 + 0.001 * active, active, 0)
        numbers = {"tool_seconds": waited + 1.0, "waits": waits, "waited_seconds": waited}
        numbers |= {"simulators": work, "reward_models": judged}
        return Span("sampler 0", MEASURED, 0.0, 0.0, meter.drain() | numbers)

    measurements = Measurements(spec)
    groups = [
        told((2.0, 12, 0.25), 6, 7.0, (3.0, 6, 0.5)),  # 6 completions, 4 of them held out
        told((4.0, 12, 0.125), 10, 9.0, (1.0, 2, 0.5)),
    ]
    measurements.step(GROUPS, [*groups, Span("sampler 0", "score", 5.0, 5.5), *STEP[-2:]])
    found = measurements.profile()
    assert (found.devices.simulators, found.devices.reward_models) == (2, 3)
    assert found.score_seconds == pytest.approx(0.25), "by the sampler itself"
    assert found.judge_seconds == pytest.approx(2 * 4.0 / 8), "of a group of two"
    assert found.tool_seconds == pytest.approx(18.0 / 4)  # of an answer
    assert found.simulator_seconds == pytest.approx(4 * 6.0 / 24)  # of its four turns
    assert found.queued_seconds == pytest.approx(16.0 / 4 - 4 * (6.0 / 24 + 0.125))


def test_switches_that_were_tried_alone_are_the_profiles():
    measurements = Measurements(SPEC)
    measurements.step(GROUPS, [decoded(), *STEP[-2:]])
    measurements.switched([Span("learner", "offload", 0.0, 0.5), Span("learner", "onload", 0.5, 0.75)])
    found = measurements.profile().switch
    assert (found.learner.offload, found.learner.onload, found.sampler.turn) == (0.5, 0.25, 0.0)


def test_a_step_in_parts_takes_as_long_as_its_parts_together():
    parts = [
        *STEP[:-2],
        learned(0, 0.5, 0.0),
        learned(1, 0.75, 0.0),
        learned(0, 0.5, 0.75, log_probs=0.5),
        learned(1, 0.75, 0.25, log_probs=0.25),
    ]
    measurements = Measurements(SPEC)
    measurements.step(GROUPS, parts)
    found = measurements.profile().learner
    assert (found.beta, found.all_reduce) == (pytest.approx(1.5 / 50), pytest.approx(0.25))
    assert found.alpha == pytest.approx(0.125), "of one part"


def test_what_is_left_of_a_step_where_nobody_works_is_its_overhead():
    spans = [
        Span("sampler 0", "generate", 100.5, 104.0),
        Span("sampler 0", "score", 103.0, 104.5),
        Span("driver", "wait", 100.0, 105.0),
        Span("learner 0", "train", 105.25, 107.0),
        Span("learner 0", "publish", 107.0, 107.5),
        Span("reward models of sampler 0", "judge", 104.25, 105.125),
        *STEP[-2:],
        decoded(),
    ]
    for staleness, expected in ((0, 0.5 + 0.125 + 0.5), (1, 0.25 + 0.5)):
        buffer = SPEC.buffer.model_copy(update={"max_staleness": staleness})
        measurements = Measurements(SPEC.model_copy(update={"buffer": buffer}))
        measurements.step(GROUPS, spans, (100.0, 108.0))
        assert measurements.profile().overhead_seconds == pytest.approx(expected)


def test_who_waits_for_a_device_on_which_nobody_works_wakes_up():
    spans = [
        Span("sampler 0", "generate", 100.0, 104.0),
        Span("driver", "lease", 103.0, 104.5),
        Span("learner 0", "train", 104.5, 106.0),
        Span("sampler 0", "lease", 105.0, 106.25),
        Span("sampler 1", "lease", 106.0, 106.75),
        *STEP[-2:],
        decoded(),
    ]
    measurements = Measurements(
        SPEC.model_copy(update={"buffer": SPEC.buffer.model_copy(update={"max_staleness": 0})})
    )
    measurements.step(GROUPS, spans, (100.0, 107.0))
    found = measurements.profile()
    assert found.switch.learner.wake == pytest.approx(0.5)
    assert found.switch.sampler.wake == pytest.approx(0.5)  # their mean
    assert found.overhead_seconds == pytest.approx(0.25)


def test_the_first_step_is_forgotten_and_late_ones_weigh_more():
    measurements = Measurements(SPEC)
    slow = [decoded(100.0), learned(0, 90.0, 9.0)]
    measurements.step(GROUPS, slow)
    measurements.step(GROUPS, STEP)
    found = measurements.profile()
    assert found.decode.base == pytest.approx(0.004)
    assert found.learner.beta == pytest.approx(1.5 / 50)
    for _ in range(HALF_LIFE):
        measurements.step(GROUPS, [decoded(2.0), learned(0, 3.0, 0.5), learned(1, 3.0, 0.5)])
    found = measurements.profile()
    assert 0.0066 < found.decode.base < 0.008  # of 4 and 8 ms
    assert found.steps == HALF_LIFE + 2


def test_an_engine_that_tells_nothing_of_its_steps_gives_no_profile():
    measurements = Measurements(SPEC)
    silent = EngineMeter().drain() | {"tool_seconds": 0.0, "weights": 0, "cache_bytes_per_token": 0}
    measurements.step(GROUPS, [Span("sampler 0", MEASURED, 0.0, 0.0, silent), *STEP[-2:]])
    assert measurements.profile() is None


def test_where_all_steps_decode_as_many_learners_say_what_each_takes():
    def told(seconds):
        meter = EngineMeter()
        for cached in (0, 8, 16):
            meter.decoded(seconds, 8, cached)
        return Span("sampler 0", MEASURED, 0.0, 0.0, meter.drain() | {"tool_seconds": 0.0})

    measurements = Measurements(SPEC)
    measurements.step(GROUPS, [told(0.5), *STEP[-2:]])
    decode = measurements.profile().decode
    assert decode.per_active == pytest.approx(1.5 / 50 / 3)  # a third of forward and backward of a token
    assert decode.base + 8 * decode.per_active == pytest.approx(0.5)
    fast = Measurements(SPEC)
    fast.step(GROUPS, [told(0.04), *STEP[-2:]])  # samplers are faster than learners' forward passes
    assert fast.profile().decode.base == pytest.approx(0.0)
    assert fast.profile().decode.per_active == pytest.approx(0.005)


def test_an_answer_longer_than_the_limit_counts_as_one_at_the_limit():
    measurements = Measurements(SPEC)
    measurements.step([group(0, [40, 1])], STEP)
    assert measurements.profile().lengths == (32, 1)


def test_what_computing_at_once_costs_is_as_it_was_tried_and_company_as_it_was():
    measurements = Measurements(
        SPEC.model_copy(update={"buffer": SPEC.buffer.model_copy(update={"max_staleness": 0})})
    )
    spans = [
        decoded(),
        Span("sampler 0", "generate", 100.0, 104.0),
        Span("learner 0", "train", 104.0, 106.0),
        Span("learner 1", "train", 104.0, 105.0),
        *STEP[-2:],
    ]
    measurements.step(GROUPS, spans)
    assert measurements.profile().learner.contention is None
    measurements.contended({"learner": 0.25, "sampler": 0.125})
    found = measurements.profile()
    assert (found.learner.contention, found.decode.contention) == (0.25, 0.125)
    assert (found.devices.learner_company, found.devices.sampler_company) == (pytest.approx(2 / 3), 0.0)


def test_what_of_a_pass_does_not_grow_with_tokens_is_as_it_was_tried_and_the_rest_is_of_tokens():
    measurements = Measurements(SPEC)
    measurements.step(GROUPS, STEP)
    before = measurements.profile()
    assert before.learner.per_pass is None
    share = (60 + 40) / 2  # tokens of a rank, in passes and log-probs of 2 s
    measurements.fixed(share / 3)
    found = measurements.profile()
    assert found.learner.per_pass == pytest.approx(0.5)
    assert found.learner.beta == pytest.approx(1.5 / share * (1 - 0.5 / 2))
    assert found.learner.fixed_tokens == pytest.approx(share / 3)
    assert learn_seconds(found, 100, 2) == pytest.approx(learn_seconds(before, 100, 2))
    assert learn_seconds(found, 50, 2) == pytest.approx(learn_seconds(before, 50, 2) + 0.25)
    # Parts have a pass each: two spans of a rank are two of them.
    halves = [span._replace(args=span.args | {"seconds": 1.0, "passes": 0.75}) for span in STEP[-2:]]
    measurements = Measurements(SPEC)
    measurements.step(GROUPS, [*STEP[:-2], *halves, *halves])
    measurements.fixed(share / 2)  # as much as a part of half a step's tokens
    found = measurements.profile()
    parts = (0.75 + 0.5) * 2  # passes and log-probs, of the slowest in either
    assert found.learner.per_pass == pytest.approx(parts / 4)
    assert (found.learner.beta + found.learner.log_prob) * share == pytest.approx(parts / 2)


@pytest.mark.parametrize(
    "several",
    [
        {"learner": SPEC.learner.model_copy(update={"tokens_per_micro_batch": 49})},
        {"algorithm": SPEC.algorithm.model_copy(update={"mini_batches": 2})},
        {"algorithm": SPEC.algorithm.model_copy(update={"epochs": 2})},
    ],
)
def test_of_parts_of_several_passes_all_grows_with_tokens(several):
    measurements = Measurements(SPEC.model_copy(update=several))
    measurements.step(GROUPS, STEP)
    before = measurements.profile()
    measurements.fixed(25.0)
    assert measurements.profile() == before


def test_the_profile_is_read_back_as_it_was_written(tmp_path):
    measurements = Measurements(SPEC)
    measurements.step(GROUPS, STEP)
    found = measurements.profile()
    save_profile(found, tmp_path / "placement-profile.json")
    assert load_profile(tmp_path) == found
