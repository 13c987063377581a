"""One of a node looks, the others believe it: what is decided of each thing, and in which order things are looked at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice

import pytest

from rl_trainer.flow.node_checks import (
    GROUPS,
    MARK_BYTES,
    SLOTS_OF_GROUP,
    WAIT_SECONDS,
    Wanted,
    check_once,
    decide,
    group_of,
    mark_of,
    slots_of,
)


class Slots:
    """Implements `Marks` in one process: `others` are at these groups, `kept` are kept by them."""

    def __init__(self) -> None:
        self.marks: dict[int, bytes] = {}
        self.others: set[int] = set()
        self.kept: set[int] = set()
        self.taken: list[int] = []
        self.broken = ""

    def _is_ours(self, slot: int) -> bool:
        return slot // SLOTS_OF_GROUP in self.taken

    def _may_fail(self, what: str) -> None:
        if self.broken == what:
            raise OSError(what)

    def take(self, group: int) -> bool:
        self._may_fail("take")
        assert group not in self.taken
        if group in self.others:
            return False
        self.taken.append(group)
        return True

    def leave(self, group: int) -> None:
        self.taken.remove(group)

    def read(self, slot: int) -> bytes:
        assert self._is_ours(slot)
        return self.marks.get(slot, bytes(MARK_BYTES))

    def write(self, slot: int, mark: bytes) -> None:
        assert self._is_ours(slot)
        assert slot not in self.kept, "the mark of what somebody keeps stays"
        self._may_fail("write")
        self.marks[slot] = mark

    def is_kept(self, slot: int) -> bool:
        assert self._is_ours(slot)
        return slot in self.kept

    def keep(self, slot: int, holder: object) -> None:
        assert self._is_ours(slot)
        self._may_fail("keep")
        self.kept.add(slot)


class Things:
    """What is to be right, by name; notes who was looked at."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.looked, self.wrong = slots, list[str](), set[str]()

    def mark(self, name: str) -> bytes:
        mark = mark_of(name, 7, "here")
        assert mark is not None
        return mark

    def group(self, name: str) -> int:
        return group_of(self.mark(name))

    def slots_with(self, name: str) -> list[int]:
        return [slot for slot, mark in self.slots.marks.items() if mark == self.mark(name)]

    def wanted(self, *names: str) -> list[Wanted]:
        return [Wanted(name, self.mark(name), self._look(name)) for name in names]

    def _look(self, name: str) -> Callable[[], None]:
        def look() -> None:
            self.looked.append(name)
            if name in self.wrong:
                raise ValueError(name)

        return look


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
def things(slots: Slots) -> Things:
    return Things(slots)


def no_pause(seconds: float) -> None:
    raise AssertionError("nobody is waited for")


MINE, OTHER = b"a" * MARK_BYTES, b"b" * MARK_BYTES


@pytest.mark.parametrize(
    ("found", "kept", "step"),
    [
        ([MINE, OTHER], {0, 1}, ("believe", 0)),
        ([OTHER, MINE], {1}, ("believe", 1)),
        ([MINE, MINE], {1}, ("believe", 1)),
        ([MINE, OTHER], {1}, ("check and mark", 0)),
        ([OTHER, MINE], {0}, ("check and mark", 1)),
        ([OTHER, b""], {0}, ("check and mark", 1)),
        ([OTHER, MINE], set(), ("check and mark", 0)),
        ([OTHER, OTHER], {0, 1}, ("check", 0)),
    ],
)
def test_what_is_decided(found: list[bytes], kept: set[int], step: tuple[str, int]):
    assert decide(MINE, found, kept.__contains__) == step


def test_a_mark_names_the_object_its_place_and_what_it_is_to_be():
    marks = [
        mark_of("ab", 7, "x"),
        mark_of("abc", 7, "x"),
        mark_of("ab", 8, "x"),
        mark_of("ab", 7, "y"),
    ]
    assert len(set(marks)) == len(marks)
    assert all(
        mark is not None and len(mark) == MARK_BYTES and 0 <= group_of(mark) < GROUPS for mark in marks
    )
    assert mark_of("ab", 7, "x") == marks[0]
    assert mark_of("ab", 7, None) is None, "not in the store"
    slots = [slot for group in range(GROUPS) for slot in slots_of(group)]
    assert slots == list(range(GROUPS * SLOTS_OF_GROUP))


def test_what_one_has_found_right_others_believe(slots: Slots, things: Things):
    check_once(things.wanted("a", "b"), slots, pause=no_pause)
    assert things.looked == ["a", "b"]
    check_once(things.wanted("a", "b", "c"), slots, pause=no_pause)
    assert things.looked == ["a", "b", "c"]
    slots.kept.difference_update(things.slots_with("b"))  # nobody has it any more: it may be another copy now
    check_once(things.wanted("a", "b", "c"), slots, pause=no_pause)
    assert things.looked == ["a", "b", "c", "b"]
    assert slots.taken == []


def test_what_is_wrong_everybody_finds(slots: Slots, things: Things):
    things.wrong.add("b")
    for _ in range(2):
        with pytest.raises(ValueError, match="b"):
            check_once(things.wanted("a", "b"), slots, pause=no_pause)
        assert slots.taken == []
    assert things.looked == ["a", "b", "b"]
    assert things.slots_with("b") == []
    assert slots.kept == set(things.slots_with("a"))


def test_without_marks_and_outside_the_store_each_looks_itself(slots: Slots, things: Things):
    for _ in range(2):
        check_once(things.wanted("a"), None, pause=no_pause)
        (one,) = things.wanted("b")
        check_once([Wanted(one.holder, None, one.check)], slots, pause=no_pause)
    assert things.looked == ["a", "b"] * 2
    assert slots.marks == {}


def test_what_others_look_at_comes_last(slots: Slots, things: Things):
    slots.others = {things.group("a"), things.group("b")}
    paused: list[float] = []

    def pause(seconds: float) -> None:
        assert things.looked[0] == "c"
        paused.append(seconds)
        if len(paused) == 2:  # found right
            slots.others.remove(things.group("b"))
            slot = slots_of(things.group("b"))[3]
            slots.marks[slot] = things.mark("b")
            slots.kept.add(slot)
        if len(paused) == 3:  # died
            slots.others.remove(things.group("a"))

    check_once(things.wanted("a", "b", "c"), slots, lambda: 0.0, pause)
    assert things.looked == ["c", "a"]
    assert len(paused) == 3
    assert len(things.slots_with("a")) == 1


def test_who_is_not_done_is_not_waited_for(slots: Slots, things: Things):
    slots.others = {things.group("a"), things.group("b")}
    now = [0.0]

    def pause(seconds: float) -> None:
        assert things.looked == ["c"]
        now[0] += 0.1

    check_once(things.wanted("a", "b", "c"), slots, lambda: now[0], pause)
    assert things.looked == ["c", "a", "b"]
    assert WAIT_SECONDS <= now[0] < WAIT_SECONDS + 0.1, "for both of them together"
    assert list(slots.marks.values()) == [things.mark("c")], "who is there has the slots"


def test_what_finds_no_free_slot_is_looked_at_again_and_again(slots: Slots, things: Things):
    alike = (name for name in map(str, count()) if things.group(name) == things.group("a"))
    *some, last = ["a", *islice(alike, SLOTS_OF_GROUP)]
    for _ in range(2):
        check_once(things.wanted(*some), slots, pause=no_pause)
    assert things.looked == some
    for _ in range(2):
        check_once(things.wanted(last, *some), slots, pause=no_pause)
    assert things.looked == [*some, last, last]
    (free,) = things.slots_with("a")
    slots.kept.remove(free)
    check_once(things.wanted(last, "a"), slots, pause=no_pause)
    assert things.looked[-2:] == [last, "a"]
    assert things.slots_with(last) == [free]


@pytest.mark.parametrize("broken", ["take", "write", "keep"])
def test_marks_that_fail_are_as_good_as_none(slots: Slots, things: Things, broken: str):
    slots.broken = broken
    for _ in range(2):
        check_once(things.wanted("a", "b"), slots, pause=no_pause)
    assert set(things.looked) == {"a", "b"}
    assert len(things.looked) >= 4, "nobody was believed"
    assert slots.taken == []
    things.wrong.add("b")
    with pytest.raises(ValueError, match="b"):
        check_once(things.wanted("a", "b"), slots, pause=no_pause)
