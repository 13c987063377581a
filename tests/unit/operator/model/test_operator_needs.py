from __future__ import annotations

from rl_operator.model.needs import Needs


def test_needs_add_up() -> None:
    one = Needs(1, 2, 3, 4, 5)
    assert one + one.times(2) == Needs(3, 6, 9, 12, 15)
    assert one.times(0) == Needs()


def test_of_two_the_larger_one_of_each() -> None:
    assert Needs(1, 2, 3, 4, 5).at_least(Needs(5, 4, 3, 2, 1)) == Needs(5, 4, 3, 4, 5)


def test_only_what_grows() -> None:
    total = Needs(9, 9, 9, 9, 9)
    assert total.where_more(Needs(1, 2, 0, 4, 5), Needs(1, 1, 0, 5, 0)) == Needs(samplers=9, storage=9)
