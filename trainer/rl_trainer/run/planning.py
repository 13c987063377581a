"""The placement of a run with mode auto while it trains: forecasts beside the loop, from what is measured of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from rl_api import RLTrainingRun
from rl_api.errors import RLTrainError
from rl_api.placement_status import WantedPlacement
from rl_api.planner.forecast import Forecast, alike, forecast, is_planned, placed, same, sentence, wanted_of
from rl_api.planner.placement import Placement
from rl_api.planner.profile import PROFILE_FILE, RunProfile
from rl_api.planner.room import placement_of
from rl_api.roles import ReplanSpec
from rl_trainer.error_text import first_line
from rl_trainer.run.forecasting import Forecasting
from rl_trainer.run.replan import Replanning
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
    (True, True): "the operator is asked for it",
}
"""What is told then: on a cluster, and whether the run may change; on a cluster others have no forecasts."""

NEAR: Final = 0.25
"""How far what a forecast says of the run as it is may be from what a step takes, as a share of that, to be believed."""

SHARE: Final = 0.01
"""Of the time of a run that forecasts may take of a processor."""


class PlacementChanged(RLTrainError):
    """The attempt has ended with a checkpoint, to go on at once with another placement.

    Attributes:
        run: the run with it.
        left: placements that the run has had before.
    """

    def __init__(self, message: str, run: RLTrainingRun, left: list[Placement]) -> None:
        super().__init__(message)
        self.run, self.left = run, left


class Planning(Closes):
    """Forecasts of one attempt, each in a process of its own.

    There are none for other modes than auto, nor for runs without `placement.replan` that no profile has planned.
    """

    def __init__(
        self,
        run: RLTrainingRun,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
        *,
        on_cluster: bool = False,
        left: list[Placement] | None = None,
        by_prior: bool = False,
    ) -> None:
        """`tell`: is told once that another placement is better; `warn`: once of a forecast that fails; `on_cluster`: an
        operator gives it to the run, with as many samplers and learners; `left`: placements that the run has had, to which
        it does not go back, None: forecasts are made only where the run asks for a change; `by_prior`: a prior has chosen
        its placement, which binds nobody."""
        replan = run.spec.placement.replan
        self._run, self._tell, self._warn, self._on_cluster = run, tell, warn, on_cluster
        self._change = replan is not None
        self._left, self._by_prior = [] if left is None else left, by_prior
        self._planned = is_planned(run.spec) and (replan is not None or left is not None)
        self._replanning = Replanning(replan or ReplanSpec())
        self._making: Forecasting | None = None
        self._made_at = -EVERY_STEPS
        self._warned = False
        self._at_step, self._not_before = EVERY_STEPS, 0.0
        self._next: RLTrainingRun | None = None
        self.wanted: WantedPlacement | None = None
        self.forecast: Forecast | None = None

    @property
    def predicted(self) -> float:
        """Seconds of a step with the placement that the run has; NaN: nobody knows yet."""
        return self.forecast.now if self.forecast is not None else math.nan

    def step(
        self, steps: int, profile: Callable[[], RunProfile | None], pace: float | None = None
    ) -> str | None:
        """One training step has ended, `steps` in all in this attempt. `profile`: what is measured by now; `pace`: seconds
        of a step as they are, None: not known.

        Returns:
            A sentence where it is this step in which another placement has been better for long enough.
        """
        if not self._planned or self._next is not None:
            return None
        try:
            self._look(steps, profile)
            found = self.forecast
            if found is not None and (same(found.best, self._run.spec) or not _near(found.now, pace)):
                found = None
            if found is not None and any(alike(found.best.placement, one) for one in self._left):
                found = None
            if found is not None and steps >= self._made_at + EVERY_STEPS:
                return None  # too old to speak for this step
            if not self._replanning.step(found) or found is None:
                return None
            self._next = placed(self._run, found.best)
        except Exception as error:  # nothing that is only foretold may end a run
            self._failed(steps, error)
            return None
        told = sentence(found, self._run.spec.algorithm.prompts_per_step)
        if self._on_cluster:
            self.wanted = wanted_of(found, self._run.spec)
        self._tell(f"{told}: {_THEN[self._on_cluster, self._change]}")
        return told

    def _look(self, steps: int, profile: Callable[[], RunProfile | None]) -> None:
        """Takes the forecast that is made, and begins the next one where it is time."""
        if self._making is not None and self._making.done():
            making, self._making = self._making, None
            try:
                self.forecast, took = making.result()
            finally:
                making.kill()
            self._made_at = steps
            self._at_step, self._not_before = steps + EVERY_STEPS, time.monotonic() + took / SHARE
        ready = self._making is None and steps >= self._at_step and time.monotonic() >= self._not_before
        if ready and (measured := profile()) is not None:
            self._making = Forecasting(measured, self._run, self._on_cluster, self._by_prior)

    def _failed(self, steps: int, error: Exception) -> None:
        self.forecast, self._at_step = None, steps + EVERY_STEPS
        self._replanning.step(None)
        if not self._warned:
            self._warned = True
            self._warn(f"no placement is foretold, and the run keeps its own: {first_line(error)}")

    @property
    def due(self) -> bool:
        """Whether another placement is to take over here."""
        return self._change and self._next is not None and not self._on_cluster

    def change(self) -> PlacementChanged:
        """What ends the attempt, once its checkpoint is written."""
        assert self._next is not None, "it is due"
        left = [*self._left, placement_of(self._run.spec)]
        return PlacementChanged(
            "the run goes on from this checkpoint with another placement", self._next, left
        )

    def close(self) -> None:
        """No forecasts any more; one that is being made is not waited for."""
        if self._making is not None:
            self._making.kill()
            self._making = None


def _near(predicted: float, measured: float | None) -> bool:
    """Whether a forecast knows what the run takes as it is: of others it knows no more than that."""
    return measured is None or abs(predicted - measured) <= NEAR * measured


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
