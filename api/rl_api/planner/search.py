"""The fastest way to run a chain of stages on devices: a dynamic programme over intervals of the chain. Pure.

A *stage* works through the groups of a step, all at once or part by part. An interval of the chain on d devices is made of
its stages in one of these ways:

    in turn      the first half of the interval works through the whole step, then the second on the same devices:
                 the sum, and a switch
    alternating  both halves on the same devices, part by part: two switches a part
    split        each half on devices of its own, parts passing from one to the other:
                 fill + (parts - 1) x the slower one
    handed over  (the whole chain alone) the first stage on all devices until a moment; then some of them work at what comes
                 after it, and the others go on with what is left. No cut of the chain into two is that.

Splits of splits, and of what is in turn, are found since halves are intervals themselves. Each interval keeps not the
fastest alone but the Pareto front of what matters to what it becomes a part of: a half that is slower by itself may begin
to emit parts earlier, or take less memory.

Parts flow like this: an element takes part k at first + k x period. Where it is *whole* in between (some of it begins only
when all parts are there), it emits part k at outFirst + k x outPeriod after it has taken the last one, else with the taking.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

MOST_KEPT: Final = 5
"""Elements of a front."""

MOST_FOUND: Final = 60
"""Ways to run the whole chain that are given."""

MOST_EVERY: Final = 32
"""Devices up to which every number of them is tried."""

MOST_COUNTS: Final = 10
"""Even shares of the devices that are tried, beside powers of two and what they leave."""

Way = Literal["whole", "parts", "turn", "alternate", "split", "handOver"]


@dataclass(frozen=True)
class Stage:
    """One stage of the chain.

    Attributes:
        name: of people's.
        whole: by number of devices that exist for it: seconds of the whole step at once.
        streamed: by number of devices: seconds until its first part is done, and from one part to the next; empty: it
            needs the whole step.
        held: bytes on each of its devices, by their number; empty: not known.
        switch: seconds to take devices over and to leave them again.
        hands_over: whether it can leave devices before it is done, what is left going on with the others.
    """

    name: str
    whole: Mapping[int, float]
    streamed: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    held: Mapping[int, float] = field(default_factory=dict)
    switch: float = 0.0
    hands_over: bool = False


class Element(NamedTuple):
    """One way to run an interval: `(way, what it is made of)` in `made`, a stage's being `(way, name, devices)`."""

    total: float
    first: float
    period: float
    whole: bool
    out_first: float
    out_period: float
    held: float
    made: tuple[object, ...]


@dataclass(frozen=True)
class Found:
    """What the search has found.

    Attributes:
        best: ways to run the whole chain, the fastest first.
        states: intervals on a number of devices that were looked at.
        tried: elements made of others.
    """

    best: tuple[Element, ...]
    states: int
    tried: int


def counts_of(stages: Sequence[Stage], devices: int) -> list[int]:
    """Devices that intervals are tried on: any number of a few, of many even shares, powers of two, and what these leave.

    The search adds those of the fastest pipeline.
    """
    if devices <= MOST_EVERY:
        return list(range(1, devices + 1))
    powers = [2**power for power in range(devices.bit_length()) if 2**power <= devices]
    even = [devices * share // MOST_COUNTS for share in range(1, MOST_COUNTS + 1)]
    found = {*powers, *even, *(devices - power for power in powers if power < devices)}
    least = min(min(stage.whole) for stage in stages)
    return sorted(count for count in found if count >= least)


class Pipeline(NamedTuple):
    """The first or last stages of a chain, each on devices of its own, part by part."""

    devices: int
    first: float
    period: float
    counts: tuple[int, ...]


def _undominated(ways: list[Pipeline]) -> list[Pipeline]:
    """Those that no other equals in devices, first part and period."""
    kept: list[Pipeline] = []
    firsts: list[float] = []  # of those kept, ascending, and their periods, descending
    periods: list[float] = []
    for way in sorted(ways):
        at = bisect.bisect_right(firsts, way.first)
        if at and periods[at - 1] <= way.period:
            continue
        end = at
        while end < len(periods) and periods[end] >= way.period:
            end += 1
        firsts[at:end], periods[at:end] = [way.first], [way.period]
        kept.append(way)
    return kept


def search(stages: Sequence[Stage], devices: int, parts: int, memory: float | None = None) -> Found:
    """The fastest ways to run `stages` in this order on `devices`, a step being `parts` (>= 1) parts.

    `memory`: bytes of a device, None: not known, nothing is held against it. None is found where no way fits.
    """
    return _Search(tuple(stages), devices, parts, memory).found()


class _Search:
    def __init__(self, stages: tuple[Stage, ...], devices: int, parts: int, memory: float | None) -> None:
        self.stages, self.devices, self.rest = stages, devices, parts - 1
        self.memory = float("inf") if memory is None else memory
        self.counts = counts_of(stages, devices)
        self.pipeline = self._pipeline()
        if self.pipeline is not None:
            # What goes with its numbers is near what goes with others as good: a stage handed over, or halves of a split.
            own = self.pipeline.counts
            after = {sum(own[begin:]) for begin in range(1, len(own))}
            self.counts = sorted({*self.counts, *own, *after, *(devices - count for count in after)} - {0})
        self.divisions: dict[int, list[tuple[int, int]]] = {}
        self.fronts: dict[tuple[int, int, int], list[Element]] = {}
        self.tried = 0

    def found(self) -> Found:
        last = len(self.stages)
        whole = self._stage(0, self.devices) if last == 1 else self._interval(0, last, self.devices)
        self.fronts[(0, last, self.devices)] = whole
        # Who has the whole chain chooses among all: a front is for what becomes a part of something.
        best = heapq.nsmallest(MOST_FOUND, [*whole, *self._pipelined()])
        if last > 1 and self.stages[0].hands_over:
            best += self._handed_over()
        unique = {element.made: element for element in sorted(best, reverse=True)}
        return Found(
            tuple(
                sorted(unique.values(), key=lambda one: (one.total, one.held, repr(one.made)))[:MOST_FOUND]
            ),
            len(self.fronts),
            self.tried,
        )

    def _front(self, begin: int, end: int, devices: int) -> list[Element]:
        key = (begin, end, devices)
        if key not in self.fronts:
            made = self._stage(begin, devices) if end - begin == 1 else self._interval(begin, end, devices)
            self.fronts[key] = _pareto(made)
        return self.fronts[key]

    def _fastest(self, stage: Stage, devices: int) -> int | None:
        """Of the counts up to `devices` that exist and fit; more may be slower (all-reduce)."""
        fitting = self._fitting(stage, stage.whole, devices)
        return min(fitting, key=lambda one: (stage.whole[one], one), default=None)

    def _fitting(self, stage: Stage, counts: Iterable[int], devices: int) -> list[int]:
        return [one for one in counts if one <= devices and stage.held.get(one, 0.0) <= self.memory]

    def _stage(self, index: int, devices: int) -> list[Element]:
        stage, found = self.stages[index], []
        count = self._fastest(stage, devices)
        if count is not None:
            seconds, held = stage.whole[count], stage.held.get(count, 0.0)
            made: tuple[object, ...] = ("whole", stage.name, count)
            found.append(Element(seconds, 0.0, 0.0, True, seconds, 0.0, held, made))
        streamed = self._fitting(stage, stage.streamed, devices)
        if streamed:
            found.append(self._parts(stage, min(streamed, key=lambda one: (stage.streamed[one][1], one))))
        return found

    def _parts(self, stage: Stage, count: int) -> Element:
        first, period = stage.streamed[count]
        held, made = stage.held.get(count, 0.0), ("parts", stage.name, count)
        return Element(first + self.rest * period, first, period, False, 0.0, 0.0, held, made)

    def _pipeline(self) -> Pipeline | None:
        """The fastest way to give each stage devices of its own, whichever numbers intervals are tried on."""
        ways = [Pipeline(0, 0.0, 0.0, ())]
        for stage in reversed(self.stages):
            fitting = self._fitting(stage, stage.streamed, self.devices)
            ways = _undominated(
                [
                    Pipeline(
                        way.devices + count,
                        way.first + stage.streamed[count][0],
                        max(way.period, stage.streamed[count][1]),
                        (count, *way.counts),
                    )
                    for way in ways
                    for count in fitting
                    if way.devices + count <= self.devices
                ]
            )
        return min(ways, key=lambda one: (one.first + self.rest * one.period, one.devices), default=None)

    def _pipelined(self) -> list[Element]:
        if self.pipeline is None or len(self.stages) == 1:
            return []
        *others, last = map(self._parts, self.stages, self.pipeline.counts)
        for one in reversed(others):
            last = self._split(one, last)
        return [last]

    def _interval(self, begin: int, end: int, devices: int) -> list[Element]:
        made: list[Element] = []
        for cut in range(begin + 1, end):
            switch = self.stages[cut].switch
            for left in self._front(begin, cut, devices):
                for right in self._front(cut, end, devices):
                    made += self._shared(left, right, switch)
            for count, rest in self._divisions(devices):
                rights = self._front(cut, end, rest)
                for left in self._front(begin, cut, count):
                    made += [self._split(left, right) for right in rights]
        self.tried += len(made)
        return made

    def _divisions(self, devices: int) -> list[tuple[int, int]]:
        """Numbers that are tried which two halves can have of `devices`: of those that leave as many the largest."""
        if devices not in self.divisions:
            counts = [count for count in self.counts if count < devices]
            largest = {counts[at - 1]: one for one in counts if (at := bisect.bisect(counts, devices - one))}
            self.divisions[devices] = [(count, rest) for rest, count in largest.items()]
        return self.divisions[devices]

    def _shared(self, left: Element, right: Element, switch: float) -> list[Element]:
        """Both on the same devices, in turn or alternating. Tensors move, or where there is room for both stay."""
        found: list[Element] = []
        for seconds, held in (
            (switch, max(left.held, right.held)),
            (0.0, left.held + right.held),
        ):
            if held > self.memory or (seconds == 0.0 and switch == 0.0 and found):
                continue
            found.append(self._turn(left, right, seconds, held))
            if not left.whole and not right.whole and self.rest:
                first = left.first + right.first + 2 * seconds
                period = left.period + right.period + 2 * seconds
                made = ("alternate", left.made, right.made)
                found.append(Element(first + self.rest * period, first, period, False, 0.0, 0.0, held, made))
        return found

    def _turn(self, left: Element, right: Element, switch: float, held: float) -> Element:
        taken = right.first if not right.whole else right.first + self.rest * right.period + right.out_first
        after = left.out_first + self.rest * left.out_period if left.whole else 0.0
        period = right.out_period if right.whole else right.period
        return Element(
            left.total + switch + right.total,
            left.first,
            left.period,
            True,
            after + switch + taken,
            period,
            held,
            ("turn", left.made, right.made),
        )

    def _split(self, left: Element, right: Element) -> Element:
        held = max(left.held, right.held)
        made = ("split", left.made, right.made)
        if not left.whole:
            first, period = left.first + right.first, max(left.period, right.period)
            total = first + self.rest * period
            if not right.whole:
                return Element(total, first, period, False, 0.0, 0.0, held, made)
            total += right.out_first + self.rest * right.out_period
            return Element(total, first, period, True, right.out_first, right.out_period, held, made)
        first, period = left.out_first + right.first, max(left.out_period, right.period)
        if right.whole:
            first += self.rest * period + right.out_first
            period = right.out_period
        total = left.first + self.rest * left.period + first + self.rest * period
        return Element(total, left.first, left.period, True, first, period, held, made)

    def _handed_over(self) -> list[Element]:
        """The first stage on all devices until a moment, then on what the others leave.

        With T seconds on all devices, U on those left, and a moment t: it ends at t + (1 - t / T) U. The others take parts
        from t on. What ends last is least where both end together, or at t = 0 or T.
        """
        stage, found = self.stages[0], []
        top = self._fastest(stage, self.devices)
        if top is None:
            return []
        seconds = stage.whole[top]
        switch = self.stages[1].switch
        for count in self.counts:
            fewer = self._fastest(stage, self.devices - count)
            if fewer is None:
                continue
            slower = stage.whole[fewer]
            for right in self._front(1, len(self.stages), count):
                alone = right.first + self.rest * right.period
                tail = right.out_first + self.rest * right.out_period if right.whole else 0.0
                last = right.first  # of the last part, after the first stage has ended
                rate = slower / seconds
                # t + switch + alone = t + (1 - t / T) U + last
                moment = (slower + last - switch - alone) / rate if rate > 0 else 0.0
                for when in {0.0, seconds, min(seconds, max(0.0, moment))}:
                    ended = when + (1 - when / seconds) * slower if seconds > 0 else when
                    total = max(when + switch + alone, ended + last) + tail
                    self.tried += 1
                    made = ("handOver", ("parts", stage.name, top, fewer, when), right.made)
                    held = max(stage.held.get(top, 0.0), stage.held.get(fewer, 0.0), right.held)
                    found.append(Element(total, 0.0, 0.0, True, total, 0.0, held, made))
        return heapq.nsmallest(MOST_FOUND, found)


def _pareto(elements: list[Element]) -> list[Element]:
    """Those that no other equals in everything; of many the fastest, and those that are best in something."""
    elements.sort()
    kept: list[Element] = []
    for element in elements:
        if not any(_as_good(other, element) for other in kept):
            kept.append(element)
            if len(kept) >= 4 * MOST_KEPT:
                break
    if len(kept) <= MOST_KEPT:
        return kept
    chosen = kept[: MOST_KEPT - 3]
    for rest in (
        min(kept, key=lambda one: one.out_period if one.whole else one.period),
        min(kept, key=lambda one: one.held),
        min((one for one in kept if not one.whole), key=lambda one: one.period, default=kept[0]),
    ):
        if rest not in chosen:
            chosen.append(rest)
    return chosen


def _as_good(other: Element, element: Element) -> bool:
    """Whether `other` (not slower) can stand for `element` in whatever it becomes a part of."""
    if other.held > element.held or other.first > element.first or other.period > element.period:
        return False
    if other.whole:
        return (
            element.whole and other.out_first <= element.out_first and other.out_period <= element.out_period
        )
    return True


def words(made: tuple[object, ...]) -> str:
    """An element for people: `rollout 80 | inference 16 | training 32`."""
    if made[0] in ("whole", "parts"):
        name = f"{made[1]} {made[2]}"
        return name + (f" then {made[3]}" if len(made) > 3 else "")
    between = {"turn": " ; ", "alternate": " ~ ", "split": " | ", "handOver": " > "}[str(made[0])]
    return "(" + between.join(words(one) for one in made[1:] if isinstance(one, tuple)) + ")"
