"""Where the time of a run's steps goes, as a table of the report. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rl_trainer.observe.metrics import PARTS, StepRecord

# Of the last steps: caches are warm, and what has changed since counts.
LAST_STEPS = 50
_LABELS = {
    "generate": "decoding answers",
    "score": "scoring answers",
    "log_probs": "log-probabilities before the update",
    "values": "values of the critic",
    "train": "training",
    "publish": "publishing weights",
    "environment": "waiting for environments",
    "judge": "waiting for models that score",
    "wait": "waiting for answers",
    "evaluate": "evaluating",
    "lease": "waiting for devices",
    "switch": "moving tensors onto and off devices",
}


@dataclass(frozen=True)
class Part:
    """What a part of the work takes of a step: seconds, and their share of the step's (more than 1 where it overlaps)."""

    label: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Where:
    """Means over the last `steps` steps.

    Attributes:
        seconds: of a step.
        parts: the longest first.
        planned: steps that had a plan; predicted and measured are their means.
        predicted: seconds of a step as planned; None: there was no plan.
        measured: seconds of the same steps.
    """

    steps: int
    seconds: float
    parts: tuple[Part, ...]
    planned: int = 0
    predicted: float | None = None
    measured: float | None = None

    @property
    def off(self) -> float | None:
        """How much longer a step took than planned, as a share of the plan."""
        if not self.predicted or self.measured is None:
            return None
        return self.measured / self.predicted - 1


def where(records: Sequence[StepRecord]) -> Where | None:
    """Of a run's steps; None: nothing was measured."""
    timed = [one for one in records if math.isfinite(one.wall_seconds)][-LAST_STEPS:]
    if not timed:
        return None
    seconds = fmean(one.wall_seconds for one in timed)
    parts = []
    for name in PARTS:
        known = [value for one in timed if math.isfinite(value := getattr(one, f"time_{name}"))]
        if known and (mean := fmean(known)) > 0:
            parts.append(Part(_LABELS[name], mean, mean / seconds if seconds else 0.0))
    if not parts:
        return None
    parts.sort(key=lambda part: -part.seconds)
    planned = [one for one in timed if math.isfinite(one.predicted_seconds)]
    return Where(
        steps=len(timed),
        seconds=seconds,
        parts=tuple(parts),
        planned=len(planned),
        predicted=fmean(one.predicted_seconds for one in planned) if planned else None,
        measured=fmean(one.wall_seconds for one in planned) if planned else None,
    )
