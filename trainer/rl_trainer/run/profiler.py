"""The run's profile: what all actors measure, joined step by step and kept in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rl_api import RunSpec
from rl_api.errors import RLTrainError
from rl_api.planner.profile import PROFILE_FILE, RunProfile, save_profile
from rl_trainer.error_text import first_line
from rl_trainer.observe.timeline import Span
from rl_trainer.profile.run_profile import Measurements
from rl_trainer.storage.files import writing
from rl_trainer.trajectory import Group

T = TypeVar("T")
# Steps between two writings.
EVERY_STEPS = 10


class Profiler:
    """Measures one attempt. The file of an earlier one stays until this one has measured a step."""

    def __init__(
        self, spec: RunSpec, folder: Path, warn: Callable[[str], None], before: RunProfile | None = None
    ) -> None:
        """`warn`: is told once that what was measured makes no profile. `before`: an earlier one of such runs, whose word
        counts for what a run does not try."""
        self.measurements = Measurements(spec)
        if before is not None:
            said = {"learner": before.learner.contention, "sampler": before.decode.contention}
            self.measurements.contended({role: one for role, one in said.items() if one is not None})
            if (fixed := before.learner.fixed_tokens) is not None:
                self.measurements.fixed(fixed)
        self._warn, self._warned = warn, False
        self._path = folder / PROFILE_FILE
        self._written = 0

    def step(self, groups: Sequence[Group], spans: Sequence[Span], during: tuple[float, float]) -> None:
        """One training step has ended: see `Measurements.step`."""
        self.measurements.step(groups, spans, during)
        if self.measurements.steps >= self._written + EVERY_STEPS:
            self.write()

    def try_switches(self, offload: Callable[[], object], onload: Callable[[], object]) -> None:
        """Learners give their devices' memory back and take it up again, once, to know what that takes."""
        spans = []
        for name, call in (("offload", offload), ("onload", onload)):
            start, began = time.time(), time.perf_counter()
            call()
            spans.append(Span("learner", name, start, start + time.perf_counter() - began))
        self.measurements.switched(spans)
        self._written = 0

    def try_contention(self, tried: Callable[[RunProfile], Mapping[str, float] | None]) -> None:
        """Learners and samplers compute at once, to know what that costs: `tried` says it by role. Where that fails it is a
        warning: the run has done all that it is for."""
        self._try(tried, self.measurements.contended, "computing at once costs")

    def try_fixed(self, tried: Callable[[RunProfile], float | None]) -> None:
        """Learners make passes of two sizes, to know what does not grow with tokens: see `Measurements.fixed`. Where that
        fails it is a warning."""
        self._try(tried, self.measurements.fixed, "passes cost however few tokens they have")

    def _try(self, tried: Callable[[RunProfile], T | None], keep: Callable[[T], None], what: str) -> None:
        profile = self.profile()
        if profile is None:
            return
        try:
            if (found := tried(profile)) is not None:
                keep(found)
        except RLTrainError as error:
            self._warn(f"what {what} is not known: {first_line(error)}")
        self._written = 0

    def profile(self) -> RunProfile | None:
        """What is known; None: not enough is, or what was measured makes no sense, of which is warned: no run ends of it."""
        try:
            return self.measurements.profile()
        except Exception as error:
            if not self._warned:
                self._warned = True
                self._warn(f"what was measured makes no profile: {first_line(error)}")
            return None

    def write(self) -> RunProfile | None:
        """Writes what is known, whole or not at all; returns it. None: not enough is, and no file is written.

        Raises:
            RLTrainError: the disk is full or the folder is gone.
        """
        found = self.profile()
        if found is not None and self.measurements.steps > self._written:
            with writing(self._path):
                save_profile(found, self._path)
            self._written = self.measurements.steps
        return found
