"""Samplers above the fewest: given and taken back by the queue while the learner trains on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    deleted,
    group,
    make_pod,
    make_ray,
    running_ray,
)
from queued_runs import PREEMPTED, Queued, of_the_queue, pods

from rl_operator.model.workload import Fact, Workload


@pytest.fixture
def run() -> Queued:
    return Queued()


class TestBorrowedSamplers:
    def parts(self, run: Queued, **fields: Any) -> tuple[Workload, ...]:
        decision = run.train()
        made = [one for one in decision.create if one["kind"] == "Workload"]
        assert [one["metadata"]["name"] for one in made] == ["sums.samplers.0", "sums.samplers.1"]
        assert {one["spec"]["priority"] for one in made} == {-1_000_000_000}
        assert made[0]["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
        run.main = replace(run.main, ready=True)
        return tuple(
            of_the_queue(replace(decision, create=(one,)), slice=part, count=1, **fields)
            for part, one in enumerate(made)
        )

    def test_they_are_asked_for_when_training_has_begun(self, run: Queued) -> None:
        run.admit()
        decision = run.look(rays=(make_ray(),))
        assert not any(one["kind"] == "Workload" for one in decision.create)
        parts = self.parts(run)
        decision = run.queue(*parts)
        assert decision.scale is None
        assert decision.status.roles["sampler"].reason == "4 samplers are wanted, and the queue gives 2 now"

    def test_what_is_given_is_used_and_what_is_taken_goes(self, run: Queued) -> None:
        run.admit()
        one, two = self.parts(run)
        given = replace(one, reserved=True, admitted=True)
        decision = run.queue(given, two)
        assert decision.scale is not None
        assert decision.scale.replicas == 3
        ray = running_ray(samplers=group(3))
        decision = run.look(rays=(ray,), pods=pods(3))
        assert [(change.name, change.to) for change in decision.tell_queue] == [(one.name, "PodsReady")]
        taken = replace(given, evicted=Fact("Preempted", PREEMPTED))
        decision = run.queue(taken, two)
        assert decision.scale is not None
        assert (decision.scale.replicas, len(decision.scale.remove)) == (2, 1)
        assert decision.tell_queue == (), "its pod is still there"
        ending = (*pods(2), make_pod("sampler", index=2, deleting=run.story.now))
        decision = run.look(rays=(running_ray(samplers=group(2)),), pods=ending)
        assert decision.tell_queue == ()
        decision = run.look(pods=pods(2))
        assert [(change.name, change.to) for change in decision.tell_queue] == [(one.name, "Released")]
        assert decision.status.evictions == [], "the run was not evicted"
        assert len(decision.status.attempts) == 1

    def test_they_go_with_the_run(self, run: Queued) -> None:
        run.admit()
        one, two = (replace(each, reserved=True, admitted=True) for each in self.parts(run))
        run.queue(one, two)
        run.evict()
        run.look(workloads=(run.main, one, two))
        decision = run.story.answered("done", workloads=(run.main, one, two))
        assert deleted(decision) == [("RayJob", "sums-1")]
        decision = run.look(rays=())
        assert decision.delete == (), "its pods are still there"
        decision = run.look(pods=())
        assert sorted(deleted(decision)) == [("Workload", one.name), ("Workload", two.name)]
        assert [change.name for change in decision.tell_queue] == ["sums"]

    def test_they_are_given_back_also_where_the_run_can_no_longer_be_carried_out(self, run: Queued) -> None:
        run.admit()
        one, two = self.parts(run)
        given = replace(one, reserved=True, admitted=True)
        run.queue(given, two)
        run.look(rays=(running_ray(samplers=group(3)),), pods=pods(3))
        run.story.set({"profile": "none-such"})
        taken = replace(given, evicted=Fact("Preempted", PREEMPTED))
        decision = run.queue(taken, two)
        assert decision.scale is not None
        assert decision.scale.replicas == 2
        decision = run.look(rays=(running_ray(samplers=group(2)),), pods=pods(2))
        assert [change.to for change in decision.tell_queue] == ["Released"]

    def test_a_smaller_number_drops_those_above_it(self, run: Queued) -> None:
        run.admit()
        one, two = (replace(each, reserved=True, admitted=True) for each in self.parts(run))
        run.queue(one, two)
        run.look(rays=(running_ray(samplers=group(4)),), pods=pods(4))
        run.story.set({"sampler": {"replicas": 3}})
        decision = run.look()
        assert decision.scale is not None
        assert decision.scale.replicas == 3
        assert decision.delete == ()
        decision = run.look(rays=(running_ray(samplers=group(3)),), pods=pods(3))
        assert deleted(decision) == [("Workload", two.name)]
