"""Runs that begin with what a prior chooses: before their first pods are made, and until something is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    SETTINGS,
    Story,
    make_profile,
    make_reading,
    make_run,
    running_ray,
)
from replanned_runs import pods, written

from rl_api.placement_status import PlacementStatus, PlannedPlacement, WantedPlacement
from rl_api.planner.first import PRIOR_VARIABLE
from rl_api.progress import RunStatus
from rl_operator.model.decision import Decision
from rl_operator.plan import prior
from rl_operator.plan.effective import Effective, plan

# A sampler decodes a fraction of its answers at a time: learners could begin long before the last one is there.
WAVES: dict[str, Any] = {
    "placement": {"replan": {"threshold": 0.15, "steps": 20}},
    "algorithm": {"promptsPerStep": 16, "groupSize": 8},
    "sampler": {"replicas": 2, "maxSequences": 8},
    "learner": {"replicas": 2},
}


def begun(**spec: Any) -> tuple[Story, Decision]:
    story = Story(WAVES | spec)
    return story, story.begin()


def shown(decision: Decision) -> PlacementStatus:
    assert decision.status.placement is not None
    return decision.status.placement


def head(decision: Decision) -> dict[str, Any]:
    """Variables of the head's container."""
    spec = decision.create[-1]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    return {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}


def test_the_first_attempt_has_it_and_the_status_says_why() -> None:
    _, decision = begun()
    found = shown(decision)
    parts = written(decision)["partGroups"]
    assert (found.mode, found.shared, found.part_groups) == ("disaggregated", 0, parts)
    assert 1 <= parts < 16
    assert found.reason.startswith(
        f"placement.mode is auto: placement disaggregated: learners 2, samplers 2, parts of {parts}"
    )
    assert found.reason.endswith("(nothing was measured: a prior, good for ratios alone)")
    assert found.planned is not None
    assert (found.planned.attempt, found.planned.predicted_step_seconds) == (0, None)
    assert head(decision)[PRIOR_VARIABLE] == "1"


def test_it_stays_through_the_attempt_and_a_failed_one() -> None:
    story, decision = begun()
    digest = decision.status.attempts[0].spec_hash
    decision = story.look(rays=(running_ray(),), pods=pods(), reading=make_reading())
    assert shown(decision).planned == RunStatus.model_validate(story.run["status"]).placement.planned
    assert decision.status.attempts[0].spec_hash == digest
    story.fail("CRASH")
    story.wait(60)
    again = story.look(rays=(), pods=(), reading=None)
    assert again.status.attempts[-1].number == 2
    assert written(again)["partGroups"] == shown(decision).part_groups


def test_what_its_driver_measures_counts_for_more() -> None:
    """The driver may want the file's own placement back, and then it is told that no prior has chosen that."""
    story, _ = begun()
    whole = WantedPlacement(
        mode="disaggregated", shared_samplers=0, predicted_step_seconds=1.0, reason="it is faster"
    )
    reading = make_reading()
    said = PlacementStatus(mode="disaggregated", samplers=2, learners=2, wanted=whole)
    reading = replace(reading, progress=reading.progress.model_copy(update={"placement": said}))
    story.look(rays=(running_ray(),), pods=pods(), reading=make_reading())
    story.look(reading=reading)
    story.answered("done")
    story.look(rays=(), pods=())
    second = story.look(reading=None, ask=None)
    assert [one.number for one in second.status.attempts] == [1, 2]
    assert written(second)["partGroups"] is None
    assert shown(second).planned is not None
    assert shown(second).planned.attempt == 1
    assert PRIOR_VARIABLE not in head(second)


@pytest.mark.parametrize(
    "placement",
    [{}, {"replan": {}, "sharedSamplers": 0}, {"replan": {"threshold": 0.9}}, {"mode": "collocated"}],
)
def test_others_begin_as_they_did(placement: dict[str, Any]) -> None:
    _, decision = begun(placement=placement)
    assert shown(decision).planned is None
    assert "prior" not in shown(decision).reason
    assert PRIOR_VARIABLE not in head(decision)
    assert written(decision)["partGroups"] is None


def test_a_run_that_an_earlier_version_began_keeps_what_it_has() -> None:
    story = Story(WAVES | {"placement": {}})
    story.begin()
    story.set({"placement": WAVES["placement"]})
    decision = story.look(rays=(running_ray(),), pods=pods(), reading=make_reading())
    assert shown(decision).planned is None
    story.fail("CRASH")
    story.wait(60)
    again = story.look(rays=(), pods=(), reading=None)
    assert written(again)["partGroups"] is None


def test_who_shares_has_no_pod_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a prior chooses, pods are made for it, and the driver reads the same."""
    both = PlannedPlacement(mode="collocated", shared_samplers=2, reason="said")
    monkeypatch.setattr(prior, "_planned", lambda *asked: both)
    _, decision = begun()
    groups = decision.create[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert [(one["groupName"], one["replicas"]) for one in groups] == [("learner", 2)]
    assert written(decision)["sharedSamplers"] == 2
    assert (shown(decision).mode, shown(decision).shared) == ("collocated", 2)
    assert shown(decision).reason == "placement.mode is auto: said"


def test_what_is_not_allowed_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """More samplers than learners cannot share."""
    monkeypatch.setattr(
        prior, "_planned", lambda *asked: PlannedPlacement(mode="collocated", shared_samplers=2)
    )
    _, decision = begun(learner={"replicas": 1})
    assert shown(decision).planned is None
    assert written(decision)["sharedSamplers"] is None


def test_runs_of_a_sweep_are_planned_once() -> None:
    prior._planned.cache_clear()
    for index in range(3):
        found = plan(make_run(WAVES | {"seed": index}, name=f"sweep-{index}"), [], SETTINGS)
        assert isinstance(found, Effective)
        assert found.planned is not None
    assert prior._planned.cache_info().misses == 1


def test_devices_are_those_of_the_pools() -> None:
    pool = {
        "name": "l4",
        "acceleratorResource": "nvidia.com/gpu",
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
    }
    profile = make_profile(pools=[{"name": "cpu"}, pool])
    spec = WAVES | {"profile": "shared", "learner": {"replicas": 2, "pools": ["l4"]}}
    found = plan(make_run(spec), [profile], SETTINGS)
    assert isinstance(found, Effective)
    learner, sampler = (prior.speed_of(found.role(name), found.spec) for name in ("learner", "sampler"))
    assert (learner.name, learner.accelerator, sampler.accelerator) == ("L4", True, False)
