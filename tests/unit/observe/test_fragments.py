import pytest

from rl_trainer.observe import fragments
from rl_trainer.observe.examples import Example
from rl_trainer.observe.summary import summarize

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)> & \" ' {{data}}"


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
    assert fragments.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.14159, "3.14"), (-0.5, "\u22120.50"), (12345.6, "12,346"), (3.0, "3"), (None, "\u2013")],
)
def test_numbers_have_the_digits_a_person_reads(value, text):
    assert fragments.number(value) == text


def test_reasons_are_words():
    assert fragments.words("rewardError") == fragments.words("reward_error") == "reward error"
    assert "Target reached" in fragments.status_pill("targetReward")
    assert "Not finished" in fragments.status_pill(None)
    assert 'class="pill bad">Failed: &lt;b&gt;' in fragments.status_pill("failed: <b>")


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
    assert fragments.what_was_trained(run, 3) == (
        "tiny \u00b7 reasoning-gym number_sorting \u00b7 GRPO, 32 prompts \u00d7 8 answers \u00b7 "
        "2 samplers, 1 learner \u00b7 synchronous \u00b7 seed 3"
    )
    assert fragments.what_was_trained({}, None) == ""
    assert "&lt;script&gt;" in fragments.what_was_trained({"spec": {"model": {"source": "<script>"}}}, None)


def tiles_of(heldout, rewards=()):
    from rl_trainer.observe.metrics import StepRecord

    records = [StepRecord(step=i + 1, time=i, wall_seconds=1.0, reward_mean=r) for i, r in enumerate(rewards)]
    return fragments.tiles(summarize(records, heldout, name="n", seed=1, stop_reason=""), 100)


def test_the_first_tile_is_the_outcome():
    rising = tiles_of([(0, 0.4375), (10, 0.97), (20, 0.953)])
    assert '<span class="from">0.44</span><span class="arrow">\u2192</span>0.95' in rising
    assert '<span class="up">+0.52</span>, best 0.97 at step 10' in rising
    falling = tiles_of([(0, 0.5), (10, 0.25)])
    assert '<span class="down">\u22120.25</span>, best 0.50 at step 0' in falling
    assert "measured once" in tiles_of([(0, 0.5)])
    assert "Reward, first to last step" in tiles_of([], [0.1, 0.9])
    assert "nothing measured yet" in tiles_of([])


def test_texts_of_users_and_models_are_escaped_everywhere():
    example = Example(prompt=HOSTILE, expected=HOSTILE, before=HOSTILE, after=HOSTILE, after_right=True)
    summary = summarize([], [], name=HOSTILE, seed=1, stop_reason=HOSTILE) | {"groups_dropped": {HOSTILE: 2}}
    view = {"names": [[HOSTILE, "blue"]], "seconds": 1.0, "hidden_actors": 0}
    pieces = [
        fragments.examples_section([example]),
        fragments.groups_section(summary),
        fragments.config_section(f"name: {HOSTILE}\n# {HOSTILE}\n{HOSTILE}"),
        fragments.events_section([{"event": "note", "step": 1, "text": HOSTILE}]),
        fragments.timeline_section(view),
        fragments.status_pill(HOSTILE),
        fragments.curves([(HOSTILE, [])], 1),
    ]
    for piece in pieces:
        assert "<script" not in piece
        assert "<img" not in piece
        assert "&lt;/script&gt;" in piece.lower()


def test_answers_are_marked_and_missing_ones_are_said():
    page = fragments.examples_section(
        [
            Example(prompt="p", expected="e", before="", before_right=False),
            Example(prompt="p", expected="e", before="b", before_right=True, after="a"),
        ]
    )
    assert page.count('<span class="sign wrong"') == 1
    assert page.count('<span class="sign right"') == 1
    assert "empty" in page
    assert page.count("not taken") == 1
    assert fragments.examples_section([]) == ""


def test_many_examples_fold():
    page = fragments.examples_section([Example(prompt=str(i), expected="") for i in range(12)])
    assert page.count('<tr class="more">') == 12 - fragments.EXAMPLES_SHOWN
    assert "Show all 12 examples" in page


def test_dropped_groups_are_listed_by_reason_largest_first():
    summary = summarize([], [], name="n", seed=1, stop_reason="")
    page = fragments.groups_section(
        summary
        | {"groups_trained": 100, "zero_variance_groups": 25, "groups_dropped": {"a": 1, "bB": 3, "c": 0}}
    )
    assert "100 groups trained on, 25 (25%) of them without signal; 4 dropped." in page
    assert page.index("b b") < page.index("<span>a</span>")
    assert "<span>c</span>" not in page
    assert "0 dropped" in fragments.groups_section(summary)


def test_the_configuration_is_folded_and_its_keys_are_coloured():
    page = fragments.config_section("spec:\n  rewards:\n  - rule: exactMatch\n# why")
    assert '  - <span class="key">rule</span>: exactMatch' in page
    assert '<span class="comment"># why</span>' in page
    assert page.startswith("<details")
    assert fragments.config_section(" \n") == ""


def test_the_warm_start_is_a_line():
    events = [
        {"event": "warm_start", "time": 100.0, "step": 0, "warm_start_step": 1, "score": None},
        {"event": "warm_start", "time": 108.0, "step": 0, "warm_start_step": 50, "score": 0.44},
        {"event": "warm_start", "time": 112.0, "step": 0, "warm_start_step": 60, "score": None},
    ]
    assert "60 supervised steps to a sampled score of 0.44 in 12\u2009s" in fragments.warm_start_note(events)
    assert fragments.warm_start_note([]) == ""
