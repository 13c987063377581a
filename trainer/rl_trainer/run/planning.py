"""The placement of a run with mode auto while it trains: forecasts beside the loop, from what is measured of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from rl_api import RLTrainingRun
from rl_api.errors import RLTrainError
from rl_api.placement_status import WantedPlacement
from rl_api.planner.profile import PROFILE_FILE, RunProfile
from rl_api.roles import ReplanSpec
from rl_trainer.run.replan import (
    Forecast,
    Replanning,
    forecast,
    is_planned,
    placed,
    same,
    sentence,
    wanted_of,
)
from rl_trainer.run.supported import check_supported
from rl_trainer.storage.files import Closes

EVERY_STEPS: Final = 10
"""Steps between two forecasts, at least."""

_THEN: Final = {
    (False, False): (
        "with placement.replan the run would change to it by itself; rltrain run --resume with --profile and the run's "
        f"{PROFILE_FILE} goes on with it"
    ),
    (False, True): "the run goes on with it from its next checkpoint",
    (True, False): "with placement.replan the operator would give it to the run",
    (True, True): "the operator is asked for it",
}
"""What is told then: on a cluster, and whether the run may change."""

SHARE: Final = 0.01
"""Of the time of a run that forecasts may take."""


class PlacementChanged(RLTrainError):
    """The attempt has ended with a checkpoint, to go on at once with another placement.

    Attributes:
        run: the run with it.
    """

    def __init__(self, message: str, run: RLTrainingRun) -> None:
        super().__init__(message)
        self.run = run


class Planning(Closes):
    """Forecasts of one attempt, on a thread of its own; for other modes than auto there are none."""

    def __init__(self, run: RLTrainingRun, tell: Callable[[str], None], *, on_cluster: bool = False) -> None:
        """`tell`: is told once that another placement is better; `on_cluster`: an operator gives it to the run, with as many
        samplers and learners."""
        replan = run.spec.placement.replan
        self._run, self._tell, self._on_cluster = run, tell, on_cluster
        self._change = replan is not None
        self._thread = ThreadPoolExecutor(1, "forecast") if is_planned(run.spec) else None
        self._replanning = Replanning(replan or ReplanSpec())
        self._making: Future[tuple[Forecast | None, float]] | None = None
        self._at_step, self._not_before = EVERY_STEPS, 0.0
        self._next: RLTrainingRun | None = None
        self.wanted: WantedPlacement | None = None
        self.forecast: Forecast | None = None

    @property
    def predicted(self) -> float:
        """Seconds of a step with the placement that the run has; NaN: nobody knows yet."""
        return self.forecast.now if self.forecast is not None else math.nan

    def step(self, steps: int, profile: Callable[[], RunProfile | None]) -> str | None:
        """One training step has ended, `steps` in all in this attempt. `profile`: what is measured by now.

        Returns:
            A sentence where it is this step in which another placement has been better for long enough.
        """
        if self._thread is None or self._next is not None:
            return None
        if self._making is not None and self._making.done():
            (self.forecast, took), self._making = self._making.result(), None
            self._at_step, self._not_before = steps + EVERY_STEPS, time.monotonic() + took / SHARE
        ready = self._making is None and steps >= self._at_step and time.monotonic() >= self._not_before
        if ready and (measured := profile()) is not None:
            self._making = self._thread.submit(_timed, measured, self._run, self._on_cluster)
        found = self.forecast
        if found is not None and same(found.best, self._run.spec):
            found = None
        if not self._replanning.step(found) or found is None:
            return None
        self._next = placed(self._run, found.best)
        told = sentence(found, self._run.spec.algorithm.prompts_per_step)
        if self._on_cluster:
            self.wanted = wanted_of(found, self._run.spec)
        self._tell(f"{told}: {_THEN[self._on_cluster, self._change]}")
        return told

    @property
    def due(self) -> bool:
        """Whether another placement is to take over here."""
        return self._change and self._next is not None and not self._on_cluster

    def change(self) -> PlacementChanged:
        """What ends the attempt, once its checkpoint is written."""
        assert self._next is not None, "it is due"
        return PlacementChanged("the run goes on from this checkpoint with another placement", self._next)

    def close(self) -> None:
        """No forecasts any more; one that is being made is not waited for."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _timed(profile: RunProfile, run: RLTrainingRun, as_many: bool) -> tuple[Forecast | None, float]:
    started = time.monotonic()
    return forecast(profile, run, check_supported, as_many=as_many), time.monotonic() - started


def planned(run: RLTrainingRun, profile: RunProfile, tell: Callable[[str], None]) -> RLTrainingRun:
    """The run with the placement that `profile` speaks for, where it gains `placement.replan.threshold`, 15 %
    where the run says none; says so."""
    if not is_planned(run.spec):
        return run
    found = forecast(profile, run, check_supported)
    groups = run.spec.algorithm.prompts_per_step
    if found is None:
        tell("the profile is not of a run like this one: its placement stays as it is")
        return run
    if same(found.best, run.spec) or found.gain < (run.spec.placement.replan or ReplanSpec()).threshold:
        tell(f"the placement stays as it is: {found.now:.3g} s per step are expected")
        return run
    tell(f"{sentence(found, groups)}: the run has it from the start")
    return placed(run, found.best)
