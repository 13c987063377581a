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
from queued_runs import PREEMPTED, QUEUED, Queued, of_the_queue, pods

from rl_operator.model.decision import Decision
from rl_operator.model.workload import Fact, Workload
from rl_operator.render.workload import MOST_PARTS, parts


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


class TestPartsOfSeveral:
    """Where there are more samplers above the fewest than parts."""

    def run(self, more: int) -> Queued:
        run = Queued({**QUEUED, "sampler": {"replicas": 2 + more, "minReplicas": 2}})
        run.admit()
        return run

    def given(self, run: Queued, decision: Decision) -> list[Workload]:
        """Parts that were just made, with quota for all of them."""
        return [
            of_the_queue(
                replace(decision, create=(one,)),
                slice=int(one["metadata"]["labels"]["rltrain.dev/samplers"]),
                reserved=True,
                admitted=True,
                ready=True,
            )
            for one in decision.create
            if one["kind"] == "Workload"
        ]

    @pytest.mark.parametrize(
        ("before", "after", "kept"),
        [(20, 40, 16), (20, 11, 10), (20, 10, 10), (16, 20, 12), (33, 1, 0), (20, 0, 0)],
    )
    def test_another_number_is_reached(self, before: int, after: int, kept: int) -> None:
        run = self.run(before)
        decision = run.train()
        run.main = replace(run.main, ready=True)
        parts = self.given(run, decision)
        assert sum(one.count for one in parts) == before
        samplers = 2
        fewest = before
        changed = False
        for _ in range(12):
            decision = run.queue(
                *parts, rays=(running_ray(samplers=group(samplers, 100)),), pods=pods(samplers)
            )
            gone = {name for kind, name in deleted(decision) if kind == "Workload"}
            parts = [one for one in parts if one.name not in gone] + self.given(run, decision)
            samplers = decision.scale.replicas if decision.scale is not None else samplers
            assert samplers - 2 <= sum(one.count for one in parts), "more run than the queue has given"
            fewest = min(fewest, samplers - 2) if changed else before
            if samplers == before + 2 and not changed:
                run.story.set({"sampler": {"replicas": 2 + after, "minReplicas": 2}})
                changed = True
        assert samplers == 2 + after
        assert sum(one.count for one in parts) == after
        assert len(parts) <= MOST_PARTS
        assert fewest == kept, "no more was given back than had to be"
        assert (decision.create, decision.delete, decision.scale) == ((), (), None)


def test_parts_that_are_held_stay_where_the_rest_fits_beside_them() -> None:
    assert parts(3, {}) == {0: 1, 1: 1, 2: 1}
    assert parts(20, {}) == dict.fromkeys(range(10), 2)
    assert parts(11, dict.fromkeys(range(10), 2)) == {0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 1}
    assert parts(33, {9: 3}) == dict.fromkeys(range(11), 3)
    assert sum(parts(160, dict.fromkeys(range(MOST_PARTS), 1)).values()) == 160
    assert parts(0, {0: 1}) == {}
    assert parts(-1, {}) == {}
