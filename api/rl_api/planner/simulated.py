"""What happened in a run in virtual time, as `rl_api.planner.simulator` says it, and what befell it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Span:
    """Something that a row of the picture does from `start` to `end`, in seconds; `what`: sample, learn, switch, publish, or
    judge."""

    row: str
    what: str
    start: float
    end: float


@dataclass(frozen=True)
class Outage:
    """A sampler that is lost at `at` seconds and back `seconds` later; what it had begun is lost with it."""

    sampler: int
    at: float
    seconds: float


@dataclass
class Simulated:
    """What happened.

    Attributes:
        published: seconds at which each version was there.
        spans: what devices did, in order of their ends.
        trained: groups that were trained on, in order.
        generating, learning: seconds per step that samplers (their mean) and learners were at work.
        settled: steps at the beginning that stand for no others, as nothing was under way before them.
    """

    published: list[float]
    spans: list[Span]
    trained: list[int]
    generating: float
    learning: float
    settled: int = 1

    @property
    def step_seconds(self) -> float:
        """Mean of a step, those at the beginning left out where there are others."""
        first = min(self.settled, len(self.published) - 1)
        if first == 0:
            return self.published[-1] / len(self.published)
        return (self.published[-1] - self.published[first - 1]) / (len(self.published) - first)

    def last_step(self) -> list[Span]:
        """Spans of the last step, from 0."""
        begin = self.published[-2] if len(self.published) > 1 else 0.0
        end = self.published[-1]
        return [
            replace(span, start=max(span.start, begin) - begin, end=min(span.end, end) - begin)
            for span in self.spans
            if span.end > begin and span.start < end
        ]
