"""Which devices the roles of a run would share, for `rltrain plan --profile-of` and `--placement`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_api.planner.first import room_by_prior
from rl_api.planner.gantt import as_svg, as_text
from rl_api.planner.of_run import of_run
from rl_api.planner.plan import Alternative, Plan, make_plan, predict, seconds_text
from rl_api.planner.prior import prior_of
from rl_api.planner.profile import RunProfile, load_profile
from rl_api.planner.room import placement_of, room_of
from rl_api.planner.simulated import Simulated
from rl_api.run import RunSpec
from rl_api.sizes.shape import ModelShape
from rl_api.sizes.speeds import Speed
from rl_api.sizes.step_seconds import refuse_servers


@dataclass(frozen=True)
class PlacementPlan:
    """The plan, what it was made from, and a simulation of it."""

    plan: Plan
    profile: RunProfile
    source: str
    spec: RunSpec
    simulated: Simulated
    notes: tuple[str, ...] = ()
    """What is to be known of where it comes from."""

    @property
    def _last(self) -> float:
        published = self.simulated.published
        return published[-1] - published[-2]

    def lines(self) -> list[str]:
        """For a terminal: the plan, why, what else there is, and one step."""
        return [
            "",
            f"placement, by {self.source}:",
            *(f"  {line}" for line in self._sentences),
            "",
            *self._table(),
            "",
            *as_text(self.simulated.last_step(), self._last),
        ]

    @property
    def _sentences(self) -> tuple[str, ...]:
        plan = self.plan
        return (*self.notes, plan.reason, plan.limits, *plan.workers, *plan.sensitivity)

    def _table(self) -> list[str]:
        now = placement_of(self.spec)
        rows = [["placement", "learners", "samplers", "shared", "parts of", "hand-over at", "a step"]]
        for one in (self.plan, *self.plan.alternatives):
            rows.append(
                _row(one) + (["as the file has it"] if replace(one.placement, swap=now.swap) == now else [])
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = []
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=False)]
            lines.append("  ".join([row[0].ljust(widths[0]), *cells, *row[len(widths) :]]))
        return [lines[0], "-" * len(lines[0]), *lines[1:]]

    def picture(self) -> str:
        """One step as SVG."""
        words = self.plan.placement.words(self.profile.prompts_per_step)
        return as_svg(self.simulated.last_step(), self._last, f"{words}, {seconds_text(self._last)}")

    def as_json(self) -> dict[str, Any]:
        """For programs; times in seconds."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"source": self.source, **notes, **self.plan.to_document()}


def _row(one: Alternative) -> list[str]:
    moment = "a part" if one.hand_over_at is None else f"{one.hand_over_at:.0%}"
    return [
        one.mode,
        str(one.learners),
        str(one.samplers),
        str(one.shared),
        str(one.part_groups),
        moment if one.mode == "hybrid" else "-",
        seconds_text(one.predicted_step_seconds),
    ]


def placement_plan(
    path: Path, spec: RunSpec, memory: int | None = None, said: int | None = None
) -> PlacementPlan:
    """The placement of a run by the profile at `path`, a file or a run folder.

    `memory`: bytes of one of the run's accelerators where the profile does not know it, None: nobody does; `said`: the same
    whatever the profile knows, of the user's.

    Raises InvalidConfig: the profile cannot be read, a server decodes for the run, or nothing fits.
    """
    refuse_servers(spec, "the run that is planned", "--profile-of")
    measured = load_profile(path, "--profile-of")
    profile = of_run(measured, spec, said or measured.devices.memory or memory)
    plan = make_plan(profile, room_of(spec))
    source = f"{measured.steps} steps of {path}" if measured.steps else f"the prior in {path}"
    return PlacementPlan(plan, profile, source, spec, predict(profile, plan.placement))


def placement_by_prior(
    spec: RunSpec, shape: ModelShape, learner: Speed, sampler: Speed, memory: int | None
) -> PlacementPlan:
    """The placement of a run of which nothing was measured: see `rl_api.planner.prior`. `memory`: bytes of one of its
    accelerators, None: nobody knows.

    Raises InvalidConfig: a server decodes for the run, or nothing fits.
    """
    refuse_servers(spec, "the run that is planned", "--placement")
    prior = prior_of(spec, shape, learner, sampler, memory)
    plan = make_plan(prior.profile, room_by_prior(spec, prior))
    notes = [f"guessed are {', '.join(prior.guessed[:-1])} and {prior.guessed[-1]}"]
    if not prior.absolute:
        notes.append("seconds are no seconds, and mean something only beside each other")
    simulated = predict(prior.profile, plan.placement)
    return PlacementPlan(plan, prior.profile, "a prior: nothing was measured", spec, simulated, tuple(notes))
