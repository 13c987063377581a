"""The verdict of the gate: the interval, every limit, and what happens where next to nothing is known."""

from __future__ import annotations

import json
import math

import pytest

from rl_serve.gate.criteria import AgreementRule, Gate, HeldOutRule, LatencyRule, ProbeRule
from rl_serve.gate.judge import Measured, Paired, interval, judge
from rl_serve.gate.report import Agreement, Latency, Report

HELD_OUT = Gate(held_out=HeldOutRule())


def pairs(both: int, candidate: int, serving: int, neither: int) -> Paired:
    """So many prompts that both answer right, the candidate alone, the serving policy alone, and neither."""
    ours = [True] * (both + candidate) + [False] * (serving + neither)
    theirs = [True] * both + [False] * candidate + [True] * serving + [False] * neither
    return Paired(ours, theirs)


def ends(found: Paired, confidence: float = 0.95) -> tuple[float, float]:
    assert found.serving is not None
    return interval(found.candidate, found.serving, confidence)


def test_the_interval_is_the_published_one() -> None:
    # ci.prop.ps(.05, 12, 4, 26, 6) of the R package statpsych, by the author of the method.
    assert ends(pairs(both=6, candidate=26, serving=4, neither=12)) == pytest.approx((0.2548067, 0.6251933))


def test_the_interval_of_the_opposite_difference_is_mirrored() -> None:
    low, high = ends(pairs(40, 7, 3, 50))
    assert ends(pairs(40, 3, 7, 50)) == pytest.approx((-high, -low))


def test_more_confidence_is_wider_and_more_prompts_narrower() -> None:
    found, ten_times = pairs(4, 2, 3, 1), pairs(40, 20, 30, 10)
    assert ends(found, 0.99)[0] < ends(found)[0] < ends(ten_times)[0]
    assert ends(found, 0.99)[1] > ends(found)[1] > ends(ten_times)[1]


@pytest.mark.parametrize(
    "found", [pairs(0, 0, 0, 0), pairs(1, 0, 0, 0), pairs(0, 0, 1, 0), pairs(0, 2, 0, 0)]
)
def test_hardly_any_prompts_say_hardly_anything_and_stay_within_bounds(found: Paired) -> None:
    low, high = ends(found)
    assert -1 <= low < 0 < high <= 1


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_equal_scores_pass(n: int) -> None:
    report = judge(HELD_OUT, Measured(held_out=pairs(n, 0, 0, n)))
    assert report.passed
    assert report.held_out is not None
    assert (report.held_out.difference, report.held_out.n) == (0, 2 * n)
    assert report.held_out.low == pytest.approx(-(report.held_out.high or 0))


@pytest.mark.parametrize(("lost", "passed"), [(0, True), (5, True), (6, False), (100, False)])
def test_a_drop_is_refused_once_it_is_more_than_chance(lost: int, passed: bool) -> None:
    report = judge(HELD_OUT, Measured(held_out=pairs(128 - lost, 0, lost, 0)))
    assert report.passed is passed


def test_what_is_lost_elsewhere_may_be_won_back() -> None:
    assert judge(HELD_OUT, Measured(held_out=pairs(100, 20, 25, 0))).passed


@pytest.mark.parametrize(("max_drop", "passed"), [(0.0, False), (0.05, False), (0.2, True)])
def test_a_drop_that_is_allowed(max_drop: float, passed: bool) -> None:
    gate = Gate(held_out=HeldOutRule(max_drop=max_drop))
    assert judge(gate, Measured(held_out=pairs(860, 0, 140, 0))).passed is passed


def test_the_sentence_has_the_numbers() -> None:
    report = judge(HELD_OUT, Measured(held_out=pairs(10, 0, 90, 0)))
    assert report.message == (
        "held-out prompts: 0.100 right of 100, the serving policy 1.000, difference -0.900 (95 % interval -0.951 to "
        "-0.814): worse by more than maxDrop 0 allows"
    )


def test_without_a_serving_policy_only_the_least_score_counts() -> None:
    gate = Gate(held_out=HeldOutRule(), probe=ProbeRule(min_score=0.5), latency=LatencyRule())
    alone = Paired([False] * 9 + [True], None)
    measured = Measured(held_out=alone, probe=Paired([True, False], None), latency=Latency(0.1, None, None))
    report = judge(gate, measured)
    assert report.passed
    assert report.held_out is not None
    assert (report.held_out.candidate, report.held_out.serving, report.held_out.high) == (0.1, None, None)
    worse = judge(gate, Measured(held_out=alone, probe=alone, latency=measured.latency))
    assert not worse.passed
    assert worse.message == "probe: 0.100 right of 10, allowed: minScore 0.5 or more"


def test_the_least_score_counts_beside_a_serving_policy_that_is_as_bad() -> None:
    report = judge(Gate(probe=ProbeRule(min_score=0.5)), Measured(probe=pairs(1, 0, 0, 9)))
    assert not report.passed


@pytest.mark.parametrize("least", [0.5, None])
def test_exactly_the_least_score_is_enough(least: float | None) -> None:
    assert judge(Gate(probe=ProbeRule(min_score=least)), Measured(probe=pairs(5, 0, 0, 5))).passed


@pytest.mark.parametrize(("ratio", "passed"), [(1.0, True), (1.5, True), (1.51, False)])
def test_latency(ratio: float, passed: bool) -> None:
    report = judge(Gate(latency=LatencyRule(1.5)), Measured(latency=Latency(0.002 * ratio, 0.002, ratio)))
    assert report.passed is passed
    assert f"{ratio:.2f} times as long" in report.message


@pytest.mark.parametrize(("mean", "passed"), [(0.0, True), (0.05, True), (0.06, False)])
def test_agreement(mean: float, passed: bool) -> None:
    report = judge(Gate(agreement=AgreementRule(0.05)), Measured(agreement=Agreement(mean, 100)))
    assert report.passed is passed


@pytest.mark.parametrize(
    ("gate", "measured"),
    [
        (HELD_OUT, Measured()),
        (HELD_OUT, Measured(held_out=Paired([], []))),
        (HELD_OUT, Measured(held_out=Paired([], None))),
        (Gate(probe=ProbeRule()), Measured(probe=Paired([], []))),
        (Gate(latency=LatencyRule()), Measured()),
        (Gate(latency=LatencyRule()), Measured(latency=Latency(math.nan, 0.1, math.nan))),
        (Gate(agreement=AgreementRule()), Measured()),
        (Gate(agreement=AgreementRule()), Measured(agreement=Agreement(math.nan, 10))),
        (Gate(agreement=AgreementRule()), Measured(agreement=Agreement(0.0, 0))),
    ],
)
def test_nothing_passes_that_nothing_is_known_of(gate: Gate, measured: Measured) -> None:
    report = judge(gate, measured)
    assert not report.passed
    assert "nothing is known of the candidate" in report.message
    json.dumps(report.to_json(), allow_nan=False)


def test_a_problem_comes_first_and_the_first_failing_part_is_named() -> None:
    gate = Gate(HeldOutRule(), ProbeRule(min_score=1.0), LatencyRule(), AgreementRule())
    bad = Measured(
        "it is damaged", pairs(0, 0, 50, 0), pairs(0, 0, 0, 9), Latency(2, 1, 2), Agreement(1.0, 5)
    )
    assert judge(gate, bad).message == "it is damaged"
    assert judge(gate, Measured(problem="it is damaged")).message == "it is damaged"
    names = ["held-out", "probe", "latency", "agreement"]
    for number, name in enumerate(names):
        parts = [gate.held_out, gate.probe, gate.latency, gate.agreement]
        rest = Gate(*[part if at >= number else None for at, part in enumerate(parts)])  # type: ignore[arg-type]
        report = judge(rest, Measured("", bad.held_out, bad.probe, bad.latency, bad.agreement))
        assert not report.passed
        assert report.message.startswith(name)


def test_what_the_gate_does_not_ask_for_cannot_fail() -> None:
    assert judge(Gate(), Measured(held_out=pairs(0, 0, 50, 0), agreement=Agreement(9.0, 5))).passed


def test_pairs_have_the_same_length() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        Paired([True], [True, False])


def test_a_report_travels_as_json() -> None:
    gate = Gate(HeldOutRule(), ProbeRule(), LatencyRule(), AgreementRule())
    measured = Measured(
        "", pairs(3, 1, 1, 2), Paired([True], None), Latency(0.1, 0.1, 1.0), Agreement(0.01, 7)
    )
    report = judge(gate, measured)
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert Report.from_json(found) == report
    assert sorted(found) == ["agreement", "heldOut", "latency", "message", "passed", "probe"]
    assert sorted(found["heldOut"]) == ["candidate", "difference", "high", "low", "n", "serving"]
    assert found["latency"] == {"candidate": 0.1, "serving": 0.1, "ratio": 1.0}
    empty = Report(False, "no")
    assert Report.from_json(json.loads(json.dumps(empty.to_json()))) == empty
