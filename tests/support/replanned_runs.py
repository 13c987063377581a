"""A run whose driver wants another placement, up to the attempt that has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml
from operator_worlds import (
    Story,
    all_pods,
    make_pod,
    make_reading,
    running_ray,
)

from rl_api.placement_status import PlacementStatus, WantedPlacement
from rl_operator.model.decision import Decision
from rl_operator.model.seen import Reading

REPLAN: dict[str, Any] = {
    "placement": {"replan": {"threshold": 0.15, "steps": 20}},
    "sampler": {"replicas": 2},
    "learner": {"replicas": 2},
}
HYBRID = WantedPlacement(
    mode="hybrid",
    shared_samplers=1,
    part_groups=4,
    hand_over_at=0.5,
    predicted_step_seconds=3.0,
    reason="it would take 3 s per step where this one takes 4 s, 25% less",
)


def wanting(wanted: WantedPlacement | None = HYBRID, attempt: int = 1, **fields: Any) -> Reading:
    """The driver says this of the placement."""
    found = make_reading(attempt=attempt, **fields)
    said = PlacementStatus(mode="disaggregated", samplers=2, learners=2, wanted=wanted)
    return replace(found, progress=found.progress.model_copy(update={"placement": said}))


def pods(attempt: int = 1) -> tuple[Any, ...]:
    return (*all_pods(attempt), make_pod("learner", attempt=attempt, index=1))


def trains(spec: dict[str, Any] | None = None, profile: dict[str, Any] | None = None) -> Story:
    story = Story(REPLAN | (spec or {}), [profile] if profile is not None else None)
    story.begin()
    story.look(rays=(running_ray(),), pods=pods(), reading=make_reading())
    return story


def placement(decision: Decision) -> PlacementStatus:
    assert decision.status.placement is not None
    return decision.status.placement


def stopped(story: Story, wanted: WantedPlacement = HYBRID) -> Decision:
    """From what the driver wants to the end of the attempt."""
    story.look(reading=wanting(wanted))
    story.answered("done")
    return story.look(rays=(), pods=())


def written(decision: Decision) -> dict[str, Any]:
    """The run's placement as the driver of the attempt reads it."""
    (config,) = [one for one in decision.create if one["kind"] == "ConfigMap"]
    found: dict[str, Any] = yaml.safe_load(config["data"]["run.yaml"])["spec"]["placement"]
    return found
