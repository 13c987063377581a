from __future__ import annotations

from rl_operator.model.needs import Needs


def test_needs_add_up() -> None:
    one = Needs(1, 2, 3, 4, 5)
    assert one + one.times(2) == Needs(3, 6, 9, 12, 15)
    assert one.times(0) == Needs()
