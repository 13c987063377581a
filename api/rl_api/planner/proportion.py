"""A smaller run in place of a large one, so that its simulation is quick. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rl_api.planner.placement import Placement
from rl_api.planner.profile import RunProfile

MOST_ANSWERS: Final = 2048
"""Answers of a step that are simulated, roughly: of a larger run in proportion, a quarter of them at least."""


def in_proportion(profile: RunProfile, placement: Placement) -> tuple[RunProfile, Placement, int]:
    """A smaller run that takes as long, samplers, groups and what learners do in proportion; and how much smaller it is."""
    for fewer in range(placement.samplers, 1, -1):
        if any(
            count % fewer
            for count in (
                placement.samplers,
                placement.shared,
                profile.prompts_per_step,
                placement.part_groups,
            )
        ):
            continue
        if profile.answers / fewer < MOST_ANSWERS / 4:
            continue
        learner = profile.learner
        small = profile.model_copy(
            update={
                "prompts_per_step": profile.prompts_per_step // fewer,
                "learner": learner.model_copy(
                    update={
                        "beta": learner.beta * fewer,
                        "log_prob": learner.log_prob * fewer,
                        "value": learner.value * fewer,
                    }
                ),
            }
        )
        placed = replace(
            placement,
            samplers=placement.samplers // fewer,
            shared=placement.shared // fewer,
            part_groups=placement.part_groups // fewer,
        )
        return small, placed, fewer
    return profile, placement, 1
