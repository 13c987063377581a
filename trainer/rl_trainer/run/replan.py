"""When a run with mode auto changes its placement, by what is measured of it, and what its status says. Pure."""

from __future__ import annotations

from rl_api.placement_status import PlacementStatus, WantedPlacement
from rl_api.planner.first import First
from rl_api.planner.forecast import Forecast, rounded
from rl_api.planner.room import placement_of
from rl_api.roles import ReplanSpec
from rl_api.run import RunSpec


def placement_status(
    spec: RunSpec,
    predicted: float | None = None,
    measured: float | None = None,
    wanted: WantedPlacement | None = None,
    first: First | None = None,
) -> PlacementStatus | None:
    """What the status shows of who shares devices; None: another trainer has its own ways.

    `predicted`, `measured`: seconds of a step, where they are known; `wanted`: the placement that would be better;
    `first`: the run has what a prior has chosen to begin with, whose prediction counts until one is measured.
    """
    if spec.trainer.kind != "rltrain":
        return None
    here = placement_of(spec)
    seconds = rounded(predicted)
    if seconds is None and first is not None:
        seconds = first.seconds
    return PlacementStatus(
        mode=here.mode,
        samplers=here.samplers,
        shared=here.shared,
        learners=here.learners,
        part_groups=here.part_groups if here.part_groups < spec.algorithm.prompts_per_step else None,
        predicted_step_seconds=seconds,
        measured_step_seconds=rounded(measured),
        reason=f"placement.mode is auto: {first.reason}" if first is not None else "",
        wanted=wanted,
    )


class Replanning:
    """Looks at a forecast per step, and says when another placement has been better for long enough."""

    def __init__(self, spec: ReplanSpec) -> None:
        self._spec = spec
        self.steps = 0
        """Steps with a forecast that gains enough, and none since that does not."""

    def step(self, found: Forecast | None) -> bool:
        """One more step, with the newest forecast; whether the placement is to change now."""
        if found is None or found.gain < self._spec.threshold:
            self.steps = 0
            return False
        self.steps += 1
        return self.steps >= self._spec.steps
