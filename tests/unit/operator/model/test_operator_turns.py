"""Namespaces that share places: each has its turn, and none takes them all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_operator.model.turns import Turns


def taken(turns: Turns, most: int = 1000) -> list[str]:
    """Who gets a place, until nobody may."""
    found: list[str] = []
    while len(found) < most and (namespace := turns.take()) is not None:
        found.append(namespace)
    return found


@pytest.mark.parametrize(
    ("places", "waiting", "held"),
    [
        (16, "a", {"a": 12}),
        (16, "ab", {"a": 7, "b": 7}),
        (64, "abcd", dict.fromkeys("abcd", 15)),
        (2, "a", {"a": 2}),
        (1, "ab", {"a": 1}),
    ],
)
def test_something_stays_free_for_who_comes_next(places: int, waiting: str, held: dict[str, int]) -> None:
    turns = Turns(places)
    for namespace in waiting:
        turns.wait(namespace)
    assert Counter(taken(turns)) == held


def test_a_place_given_back_goes_to_whose_turn_it_is() -> None:
    turns = Turns(4)
    for namespace in "ab":
        turns.wait(namespace)
    assert taken(turns) == ["a", "b", "a", "b"]
    turns.give_back("a")
    assert taken(turns) == ["a"]
    turns.leave("a")
    turns.give_back("a")
    assert taken(turns) == ["b"]


@given(st.data(), st.integers(1, 20))
def test_nobody_waits_for_more_than_one_turn_of_each_other(data: st.DataObject, places: int) -> None:
    turns, held, waiting = Turns(places), Counter[str](), dict[str, Counter[str]]()
    for _ in range(data.draw(st.integers(1, 60))):
        what = data.draw(st.sampled_from(["wait", "leave", "take", "give back"]))
        namespace = data.draw(st.sampled_from("abcdef"))
        if what == "wait":
            turns.wait(namespace)
            waiting.setdefault(namespace, Counter())
        elif what == "leave":
            turns.leave(namespace)
            waiting.pop(namespace, None)
        elif what == "give back" and held[namespace]:
            turns.give_back(namespace)
            held[namespace] -= 1
        elif what == "take":
            free = places - held.total()
            may = {one for one in waiting if held[one] < 3 * free}
            first = turns.take()
            assert (first in may) if may else first is None
            if first is None:
                continue
            for one in may - {first}:
                waiting[one][first] += 1
                # Each other one comes before it once, and while it holds too much itself, oftener.
                assert waiting[one][first] <= 1
            for one in waiting.keys() - may:
                waiting[one].clear()
            waiting[first] = Counter()
            held[first] += 1
            assert held.total() <= places
