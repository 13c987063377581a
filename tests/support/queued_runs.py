"""A run in a queue of Kueue's for the tables, and what Kueue does with its Workload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from operator_worlds import (
    NOW,
    Story,
    all_pods,
    group,
    make_pod,
    make_profile,
    make_reading,
    running_ray,
)

from rl_operator.model.decision import Decision
from rl_operator.model.workload import Assignment, Fact, Flavor, Workload

QUEUED: dict[str, Any] = {"scheduling": {"queue": "team-a"}, "sampler": {"replicas": 4, "minReplicas": 2}}
PREEMPTED = (
    "Preempted to accommodate a workload (UID: 99, JobUID: UNKNOWN) due to prioritization in the ClusterQueue; "
    "preemptor path: /shared; preemptee path: /shared"
)
ASSIGNED = {
    "head": Assignment(1, ("cpu",)),
    "learner": Assignment(1, ("h100",)),
    "sampler": Assignment(2, ("h100",)),
}
FLAVORS = {
    "cpu": Flavor("cpu"),
    "h100": Flavor("h100", {"gpu": "h100"}, ({"key": "gpu", "operator": "Exists"},)),
}


def of_the_queue(decision: Decision, **fields: Any) -> Workload:
    """The Workload that was just made, as the API server holds it."""
    made = next(one for one in decision.create if one["kind"] == "Workload")
    values: dict[str, Any] = {
        "name": made["metadata"]["name"],
        "uid": f"workload-{made['metadata']['name']}",
        "queue": made["spec"]["queueName"],
        "created": NOW,
        "hash": made["metadata"]["annotations"]["rltrain.dev/manifest"],
        "pods": made["metadata"]["annotations"]["rltrain.dev/pods"],
        "count": sum(one["count"] for one in made["spec"]["podSets"]),
        "priority": made["spec"]["priority"],
    }
    return Workload(**(values | fields))


class Queued:
    """A run in a queue, and what Kueue does with it."""

    def __init__(self, spec: dict[str, Any] | None = None, **profile: Any) -> None:
        self.story = Story(spec or QUEUED, [make_profile(default=True, **profile)])
        self.main = of_the_queue(self.story.look())

    def look(self, **changes: Any) -> Decision:
        return self.story.look(**changes)

    def queue(self, *others: Workload, **changes: Any) -> Decision:
        """Kueue has changed the run's Workload."""
        world = {
            key: changes.pop(key)
            for key in ("line", "flavors", "rays", "pods", "reading", "preemptor")
            if key in changes
        }
        self.main = replace(self.main, **changes)
        return self.look(workloads=(self.main, *others), **world)

    def admit(self) -> Decision:
        return self.queue(
            reserved=True,
            admitted=True,
            evicted=None,
            waits=None,
            assigned=ASSIGNED,
            flavors=FLAVORS,
            line=None,
        )

    def train(self, samplers: int = 2) -> Decision:
        ray = running_ray(samplers=group(samplers))
        return self.look(rays=(ray,), pods=pods(samplers), reading=make_reading(time=self.story.now))

    def evict(self, message: str = PREEMPTED, reason: str = "Preempted") -> Decision:
        return self.queue(evicted=Fact(reason, message, self.story.now))


def pods(samplers: int) -> tuple[Any, ...]:
    return (*all_pods()[:2], *(make_pod("sampler", index=index) for index in range(samplers)))
