import pytest

from rl_trainer.observe import texts
from rl_trainer.observe.summary import summarize


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4\u2009s"),
        (9.4, "9.4\u2009s"),
        (9.7, "10\u2009s"),
        (59.4, "59\u2009s"),
        (59.6, "1\u2009min 00\u2009s"),
        (65, "1\u2009min 05\u2009s"),
        (3599.9, "1\u2009h 00\u2009min"),
        (12_000, "3\u2009h 20\u2009min"),
        (float("nan"), "\u2013"),
        (None, "\u2013"),
    ],
)
def test_durations_read_like_a_clock(seconds, text):
    assert texts.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.14159, "3.14"), (-0.5, "\u22120.50"), (12345.6, "12,346"), (3.0, "3"), (None, "\u2013")],
)
def test_numbers_have_the_digits_a_person_reads(value, text):
    assert texts.number(value) == text


def test_reasons_are_words():
    assert texts.words("rewardError") == texts.words("reward_error") == "reward error"
    assert texts.ended("targetReward") == "Target reached"
    assert texts.ended("failed: disk") == "Failed: disk"


def test_the_line_below_the_name_says_what_was_trained():
    run = {
        "spec": {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "number_sorting"},
            "algorithm": {"name": "grpo", "promptsPerStep": 32, "groupSize": 8},
            "sampler": {"replicas": 2},
            "learner": {"replicas": 1},
            "buffer": {"maxStaleness": 0},
        }
    }
    assert texts.what_was_trained(run, 3) == (
        "tiny \u00b7 reasoning-gym number_sorting \u00b7 GRPO, 32 prompts \u00d7 8 answers \u00b7 "
        "2 samplers, 1 learner \u00b7 synchronous \u00b7 seed 3"
    )
    assert texts.what_was_trained({}, None) == ""


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ({"mode": "auto"}, "synchronous"),
        ({"mode": "disaggregated", "partGroups": 4}, "parts of 4 groups \u00b7 synchronous"),
        ({"mode": "collocated"}, "collocated \u00b7 synchronous"),
        ({"mode": "hybrid"}, "hybrid \u00b7 synchronous"),
        ({"mode": "auto", "sharedSamplers": 2}, "2 on learners' devices \u00b7 synchronous"),
    ],
)
def test_the_line_says_who_shares_devices(placement, said):
    run = {"spec": {"placement": placement, "buffer": {"maxStaleness": 0}}}
    assert texts.what_was_trained(run, None) == said


def outcome(heldout, rewards=()):
    from rl_trainer.observe.metrics import StepRecord

    records = [StepRecord(step=i + 1, time=i, wall_seconds=1.0, reward_mean=r) for i, r in enumerate(rewards)]
    return texts.tiles(summarize(records, heldout, name="n", seed=1, stop_reason=""), 100)[0]


def test_the_first_tile_is_the_outcome():
    rising = outcome([(0, 0.4375), (10, 0.97), (20, 0.953)])
    assert (rising.start, rising.value) == ("0.44", "0.95")
    assert (rising.trend, rising.change, rising.note) == ("up", "+0.52", ", best 0.97 at step 10")
    falling = outcome([(0, 0.5), (10, 0.25)])
    assert (falling.trend, falling.change, falling.note) == ("down", "\u22120.25", ", best 0.50 at step 0")
    assert outcome([(0, 0.5)]).note == "measured once"
    assert outcome([], [0.1, 0.9]).label == "Reward, first to last step"
    assert outcome([]).note == "nothing measured yet"


def test_keys_of_the_configuration_are_told_apart():
    assert texts.yaml_lines("spec:\n  rewards:\n  - rule: exactMatch\n  plain text\n") == [
        ("", "spec", ":"),
        ("  ", "rewards", ":"),
        ("  - ", "rule", ": exactMatch"),
        ("", "", "  plain text"),
    ]


def test_the_warm_start_is_a_line():
    events = [
        {"event": "warm_start", "time": 100.0, "step": 0, "warm_start_step": 1, "score": None},
        {"event": "warm_start", "time": 108.0, "step": 0, "warm_start_step": 50, "score": 0.44},
        {"event": "warm_start", "time": 112.0, "step": 0, "warm_start_step": 60, "score": None},
    ]
    assert texts.warm_start_line(events) == "60 supervised steps to a sampled score of 0.44 in 12\u2009s"
    assert texts.warm_start_line([]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0312, "0.0312\u2009s"),
        (1.2345, "1.23\u2009s"),
        (9.999, "10\u2009s"),
        (65, "1\u2009min 05\u2009s"),
        (None, "\u2013"),
    ],
)
def test_parts_of_short_steps_have_three_digits(seconds, text):
    assert texts.short_duration(seconds) == text
