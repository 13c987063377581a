"""When nobody of a run works, and how many do at once, from the spans of all actors. Pure.

    overhead  seconds of a step in which nobody does what the profile has a number for: calls between actors, dealing out
              batches, records
    wake      those of who waits for a device on which nobody works any more
    company   others that compute while an actor does

Where samplers run ahead, a step's spans are not those of its time: samplers tell theirs with the groups that they finish,
which may be trained on steps later. So a wait for a device is looked at when the steps around it are known.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rl_api.run import RunSpec
from rl_trainer.observe.step_times import COMPUTING, uncovered
from rl_trainer.observe.timeline import ENVIRONMENT, JUDGE, MEASURED, Span

_WAITS = ("lease", "wait")
_FOR_WORKERS = (ENVIRONMENT, JUDGE)
# Steps on either side at most, of which all spans are kept.
_MOST_AROUND = 8


class Idle:
    """Of one run. `wakes` is told of each of its steps."""

    def __init__(self, spec: RunSpec) -> None:
        self._ahead = spec.buffer.max_staleness > 0
        self._shared = {f"sampler {rank}" for rank in range(spec.shared_samplers)}
        # Steps on either side of one that may tell what happened during it.
        self._around = min(spec.buffer.max_staleness + 1, _MOST_AROUND) if self._ahead else 0
        self._steps: deque[list[Span]] = deque(maxlen=2 * self._around + 1)

    def overhead(self, spans: Sequence[Span], during: tuple[float, float]) -> float:
        """Of a step from `during[0]` to `during[1]`, seconds since the epoch.

        Where samplers run ahead somebody decodes all the time, also while a step waits for driver and learners: what these
        do counts alone, and from a group's being finished to the driver's having it.
        """
        told = [span for span in spans if span.name != MEASURED]
        if not self._ahead:  # waits for environments and models that score are of the profile as well
            return uncovered(*during, _times(span for span in told if span.name != "wait"))
        own = [span for span in told if not _samples(span) and span.name not in _FOR_WORKERS]
        finished = [span.end for span in spans if span.name == MEASURED and _samples(span)]
        found = uncovered(*during, _times(own))
        for wait in own:
            if (wait.actor, wait.name) == ("driver", "wait"):
                last = max((end for end in finished if end <= wait.end), default=wait.end)
                found += wait.end - last if last > wait.start else 0.0
        return found

    def wakes(self, spans: Sequence[Span]) -> list[tuple[str, float]]:
        """Role and seconds of each wait for a device of the last step of which enough is known, `spans` being of the newest.

        Where samplers run ahead, of a wait what is left when the other side has ended the last of its work there: what the
        driver does between two pieces of it is overhead. The first step is cold, and left out.
        """
        self._steps.append([span for span in spans if span.name not in (MEASURED, *_FOR_WORKERS)])
        if not self._ahead:
            others = _times(span for span in self._steps[-1] if span.name not in _WAITS)
            return [(_role(one), uncovered(one.start, one.end, others)) for one in self._leases(-1)]
        if len(self._steps) < self._steps.maxlen:  # type: ignore[operator]  # it has one
            return []
        known = [span for step in self._steps for span in step if span.name not in _WAITS]
        ends = {
            "learner": sorted(span.end for span in known if span.actor in self._shared),
            "sampler": sorted(span.end for span in known if span.name == "checkpoint" or _learns(span)),
        }
        return [
            (role, one.end - max(one.start, _last(ends[role], one.end)))
            for one in self._leases(-1 - self._around)
            for role in (_role(one),)
        ]

    def company(self) -> dict[str, tuple[float, float]]:
        """By role, of the step of which `wakes` has told last: seconds that its actors computed, and how many others did so
        meanwhile, times these seconds."""
        if self._ahead and len(self._steps) < self._steps.maxlen:  # type: ignore[operator]  # it has one
            return {}
        computing = [
            one for step in self._steps for one in step if one.name in COMPUTING.get(_role_of(one), ())
        ]
        at_once = Together(_times(computing))
        found: dict[str, tuple[float, float]] = {}
        for one in self._steps[-1 - self._around]:
            role, seconds = _role_of(one), one.end - one.start
            if one.name in COMPUTING.get(role, ()) and seconds > 0:
                beside, before = found.get(role, (0.0, 0.0))
                found[role] = beside + at_once.seconds(one.start, one.end) - seconds, before + seconds
        return found

    def _leases(self, step: int) -> list[Span]:
        return [span for span in self._steps[step] if span.name == "lease"]


def _last(times: Sequence[float], until: float) -> float:
    """Of times in order the last one until then; -inf: there is none."""
    place = bisect.bisect_right(times, until)
    return times[place - 1] if place else -math.inf


def _role(lease: Span) -> str:
    """Of who waits: the driver does so for learners."""
    return "sampler" if _samples(lease) else "learner"


def _learns(span: Span) -> bool:
    return span.actor.startswith("learner ")


class Together:
    """How many intervals there are at a time."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        """`intervals`: seconds at which each begins and ends."""
        changes = sorted(edge for first, last in intervals for edge in ((first, 1), (last, -1)))
        self._times = [time for time, _ in changes]
        # At each of these, of all that are over or under way, the seconds so far; and how many are under way from then on.
        self._so_far, self._many = [0.0] * len(changes), list(accumulate(step for _, step in changes))
        for place in range(1, len(changes)):
            passed = self._times[place] - self._times[place - 1]
            self._so_far[place] = self._so_far[place - 1] + self._many[place - 1] * passed

    def seconds(self, start: float, end: float) -> float:
        """Of all intervals together those between two times."""
        return self._until(end) - self._until(start)

    def _until(self, time: float) -> float:
        place = bisect.bisect_right(self._times, time) - 1
        return self._so_far[place] + self._many[place] * (time - self._times[place]) if place >= 0 else 0.0


def _role_of(span: Span) -> str:
    return span.actor.split(" ")[0]


def _samples(span: Span) -> bool:
    return span.actor.startswith("sampler ")


def _times(spans: Iterable[Span]) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in spans]
