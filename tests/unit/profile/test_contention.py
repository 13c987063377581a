"""What it costs to compute at once: from when each process did a piece of its work."""

from __future__ import annotations

import pytest

from rl_trainer.profile.contention import contention


def pieces(begin: float, seconds: float, count: int) -> list[tuple[float, float]]:
    return [(begin + number * seconds, begin + (number + 1) * seconds) for number in range(count)]


def test_each_other_process_costs_the_same_share() -> None:
    alone = [*pieces(0.0, 1.0, 4), (4.0, 9.0)]  # once something else came between
    assert contention(alone, [pieces(10.0, 1.25, 4), pieces(10.0, 1.25, 4)]) == pytest.approx(0.25)
    assert contention(alone, [pieces(10.0, 1.5, 4)] * 3) == pytest.approx(0.25)


def test_what_was_done_before_all_work_or_after_one_is_done_counts_for_nothing() -> None:
    early = [*pieces(0.0, 1.0, 6), *pieces(6.0, 1.5, 4)]
    late = [*pieces(6.0, 1.5, 4), *pieces(12.0, 1.0, 9)]
    assert contention(pieces(0.0, 1.0, 4), [early, late]) == pytest.approx(0.5)
    assert contention(pieces(0.0, 1.0, 4), [pieces(0.0, 3.0, 2), pieces(6.0, 3.0, 2)]) is None  # never both


def test_it_is_never_less_than_nothing_nor_more_than_taking_turns() -> None:
    alone = pieces(0.0, 1.0, 4)
    assert contention(alone, [pieces(5.0, 0.75, 8), pieces(5.0, 0.75, 8)]) == 0.0
    assert contention(alone, [pieces(5.0, 4.0, 3), pieces(5.0, 4.0, 3)]) == 1.0
    assert contention(alone, [alone]) == 0.0  # nobody else
