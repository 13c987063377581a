"""Published steps: what calibrates comes out, what is predicted is near; the page that shows it is up to date."""

from __future__ import annotations

import pytest
from placement_page import DOCS, PAGE, PICTURES, images, page, plan
from published_steps import all_rows, embodied

# Long simulations: to watch each of their lines would take twice as long again, and other tests run the same ones.
pytestmark = pytest.mark.no_cover

FAR = {
    ("RLinf, 7B on 64", "collocated over disaggregated in parts of 8 groups"),
    ("verl, collocated 7B", "on 64, s"),
    ("verl, collocated 7B", "on 128, s"),
}
"""Rows that are further off, of which docs/placement.md says why."""


def test_calibrated_rows_come_out_and_predicted_ones_are_within_15_percent_but_for_those_named() -> None:
    rows = all_rows()
    assert all(abs(row.error) <= 0.03 for row in rows if row.calibrates)
    predicted = [row for row in rows if not row.calibrates]
    far = {(row.source, row.what) for row in predicted if abs(row.error) > 0.15}
    assert far == FAR
    assert len(predicted) - len(far) >= 9


def test_more_staleness_is_faster_and_the_gain_ends() -> None:
    rows = {row.what: row.predicted for row in all_rows() if row.source == "verl, fully async 7B"}
    by_staleness = [rows[f"64 + 64, staleness {staleness}, s"] for staleness in (0, 0.1, 0.3, 0.5)]
    assert by_staleness == sorted(by_staleness, reverse=True)
    assert by_staleness[0] - by_staleness[1] > by_staleness[2] - by_staleness[3]


def test_part_size_turns_the_order_of_collocated_and_disaggregated() -> None:
    """The two regimes in which published figures contradict each other."""
    rows = {row.what: row.predicted for row in all_rows() if row.source == "RLinf, 7B on 64"}
    assert 1.44 <= rows["disaggregated in one part over verl's collocated"] <= 1.69
    assert rows["collocated over disaggregated in parts of 8 groups"] > 0.95


def test_environments_decide_who_shares() -> None:
    assert embodied(cpu_bound=False) == "((environment 1 | policy 3) ; training 4)"
    assert embodied(cpu_bound=True) == "(environment 4 ; (policy 4 ; training 4))"


def test_a_profile_that_is_as_wrong_as_published_ones_loses_what_the_plan_says() -> None:
    assert len(plan().sensitivity) == 2
    for said in plan().sensitivity:
        assert said.startswith("the plan stays") or float(said.rpartition(" ")[2].rstrip("%")) < 10


def test_the_page_and_its_pictures_are_up_to_date() -> None:
    assert page() == PAGE.read_text(encoding="utf-8"), "run python tests/support/placement_page.py"
    for name, svg in images().items():
        path = DOCS / "images" / f"placement-{name}.svg"
        assert svg == path.read_text(encoding="utf-8"), "run python tests/support/placement_page.py"


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_the_page_shows_each_picture(name: str) -> None:
    assert f"(images/placement-{name}.svg)" in page()
