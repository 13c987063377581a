import math

from rl_trainer.observe.charts import SECTIONS, build_columns, outcome_charts, thin, visible
from rl_trainer.observe.metrics import FIELDS, StepRecord

ALL = [chart for _, charts in SECTIONS for chart in charts]


def records(count, **fields):
    return [
        StepRecord(**{"step": step, "time": step, "wall_seconds": 2.0, "reward_mean": 0.5, **fields})
        for step in range(1, count + 1)
    ]


def test_every_curve_reads_a_column_that_exists():
    columns = build_columns(records(2), [])
    for chart in [*ALL, *outcome_charts(columns, 0.9)]:
        assert {series.column for series in chart.series} <= set(columns), chart.id
    assert len({chart.id for chart in ALL}) == len(ALL)


def test_rows_are_steps_and_evaluations_with_the_time_of_training():
    columns = build_columns(records(2, loss=math.nan), [(0, 0.25), (2, 0.5)])
    assert columns["step"] == [0, 1, 2]
    assert columns["elapsed"] == [0.0, 2.0, 4.0]
    assert columns["heldout_score"] == [0.25, None, 0.5]
    assert columns["reward_mean"] == [None, 0.5, 0.5]
    assert columns["loss"] == [None, None, None]


def test_time_that_no_part_accounts_for_is_shown_when_it_matters():
    assert build_columns(records(2, time_train=1.5), [])["time_other"] == [0.5, 0.5]
    assert build_columns(records(2, time_train=1.99), [])["time_other"] == [None, None]
    assert build_columns(records(2, time_train=3.0), [])["time_other"] == [None, None]


def test_samplers_are_a_curve_where_their_number_changed():
    same, changed = build_columns(records(3, samplers=2), []), records(2, samplers=2)
    changed += records(1, step=3, samplers=1)
    assert same["samplers"] == [None, None, None]
    assert build_columns(changed, [])["samplers"] == [2, 2, 1]


def test_charts_and_curves_without_numbers_are_left_out():
    columns = build_columns(records(3, kl=0.0, staleness_mean=1.0, time_train=2.0, time_wait=0.0), [])
    shown = {chart.id: [series.column for series in chart.series] for chart in visible(ALL, columns)}
    assert shown["kl"] == ["kl"]  # measured, and zero is a measurement
    assert shown["staleness"] == ["staleness_mean"]
    assert shown["time"] == ["time_train"]
    assert "entropy" not in shown


def test_reward_and_score_share_a_chart_only_on_the_same_scale():
    unit = build_columns(records(2), [(0, 0.5)])
    assert [chart.id for chart in outcome_charts(unit, 0.9)] == ["reward"]
    assert outcome_charts(unit, 0.9)[0].bounds == (0.0, 1.0)
    large = build_columns(records(2, reward_mean=-5.0), [(0, 0.5)])
    heldout, reward = outcome_charts(large, 0.9)
    assert (heldout.id, heldout.target) == ("heldout", 0.9)
    assert (reward.id, reward.target, reward.bounds) == ("reward", None, None)
    (alone,) = outcome_charts(build_columns(records(2, reward_mean=-5.0), []), 4.0)
    assert alone.target == 4.0


def test_thinning_keeps_means_maxima_and_the_last_of_what_adds_up():
    columns = {
        "step": [1, 2, 3, 4, 5],
        "reward_mean": [1.0, 3.0, None, None, 7.0],
        "ratio_max": [1.0, 9.0, 2.0, 3.0, 4.0],
        "groups_trained": [8, 16, 24, 32, 40],
        "heldout_score": [0.5, None, None, 0.75, None],
    }
    assert thin(columns, 3) == {
        "step": [2, 4, 5],
        "reward_mean": [2.0, None, 7.0],
        "ratio_max": [9.0, 3.0, 4.0],
        "groups_trained": [16, 32, 40],
        "heldout_score": [0.5, 0.75, None],
    }
    assert thin(columns, 5) is columns


def test_a_long_run_keeps_the_page_small():
    columns = build_columns(records(5000), [])
    assert len(columns["step"]) == 1000
    assert columns["step"][-1] == 5000
    assert set(FIELDS) - {"prompts", "groups_dropped"} <= set(columns)
