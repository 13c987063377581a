"""Topology in pods: rules of the scheduler, and what Kueue finds in its place."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import groups, make_plan, make_profile

from rl_operator.model.seen import QueuePriority
from rl_operator.model.workload import Placed
from rl_operator.plan.effective import Effective
from rl_operator.render.topology import pod_set_topology
from rl_operator.render.workload import run_workload

LABELS = {"zone": "topology.kubernetes.io/zone", "rack": "example.com/rack"}
LEVELS = [{"name": name, "label": label} for name, label in LABELS.items()]
POOLS: list[dict[str, Any]] = [
    {"name": name, "nodeSelector": {"capacity": name}, "topology": LEVELS} for name in ("spot", "owned")
]
KUEUE = "kueue.x-k8s.io"


def planned(
    topology: dict[str, str] | None, queue: str | None = None, integration: str = "workload"
) -> Effective:
    spec = {
        "learner": {"topology": topology, "pools": ["spot", "owned"]},
        "scheduling": {"queue": queue, "integration": integration},
    }
    return make_plan(spec, make_profile(default=True, pools=POOLS))


def learner(topology: dict[str, str], **scheduling: Any) -> dict[str, Any]:
    found: dict[str, Any] = groups(planned(topology, **scheduling))["learner"]["template"]
    return found


OTHERS = {
    "matchLabels": {"rltrain.dev/run": "sums", "rltrain.dev/attempt": "1", "rltrain.dev/role": "learner"}
}


def test_all_in_one_domain_beside_the_pools() -> None:
    affinity = learner({"required": "rack"})["spec"]["affinity"]
    assert affinity["podAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": OTHERS, "topologyKey": "example.com/rack"}
        ]
    }
    without = learner({"spread": "zone"})["spec"]["affinity"]
    assert affinity["nodeAffinity"] == without["nodeAffinity"], "the pools stay as they are"


def test_near_each_other_if_that_can_be() -> None:
    term = {"labelSelector": OTHERS, "topologyKey": "example.com/rack"}
    assert learner({"preferred": "rack"})["spec"]["affinity"]["podAffinity"] == {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
    }


@pytest.mark.parametrize("queue", [None, "team-a"])
def test_far_from_each_other(queue: str | None) -> None:
    pod = learner({"spread": "zone"}, queue=queue)
    assert pod["spec"]["topologySpreadConstraints"] == [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": OTHERS,
        }
    ]
    assert "podAffinity" not in pod["spec"]["affinity"]
    assert "annotations" not in pod["metadata"]


def test_each_attempt_and_role_is_for_itself() -> None:
    found = groups(planned({"required": "rack"}))
    assert "affinity" not in found["sampler"]["template"]["spec"]
    assert "affinity" not in found["head"]["template"]["spec"]
    labels = found["learner"]["template"]["metadata"]["labels"]
    assert OTHERS["matchLabels"].items() <= labels.items(), "a pod counts among those it is to be with"


@pytest.mark.parametrize("integration", ["label", "workload"])
@pytest.mark.parametrize("how", ["required", "preferred"])
def test_with_a_queue_kueue_finds_the_request(how: str, integration: str) -> None:
    pod = learner({how: "rack"}, queue="team-a", integration=integration)
    assert pod["metadata"]["annotations"] == {f"{KUEUE}/podset-{how}-topology": "example.com/rack"}
    assert "podAffinity" not in pod["spec"]["affinity"], "Kueue has chosen for all of them"
    assert "schedulingGates" not in pod["spec"], "no pod is gated that nobody admits"


@pytest.mark.parametrize(
    ("topology", "request_", "annotation"),
    [
        ({"required": "rack"}, {"required": "example.com/rack"}, ("required", "example.com/rack")),
        ({"preferred": "zone"}, {"preferred": LABELS["zone"]}, ("preferred", LABELS["zone"])),
        ({"spread": "zone"}, None, ("unconstrained", "true")),
        (None, None, ("unconstrained", "true")),
    ],
)
def test_a_pod_set_and_its_pods_ask_for_the_same(
    topology: dict[str, str] | None, request_: dict[str, str] | None, annotation: tuple[str, str]
) -> None:
    effective = planned(topology, queue="team-a")
    assert pod_set_topology(effective.role("learner")) == (request_ or {})
    sets = run_workload(effective, QueuePriority())["spec"]["podSets"]
    assert {one["name"]: one.get("topologyRequest") for one in sets} == {
        "head": None,
        "learner": request_,
        "sampler": None,
    }
    found = groups(effective.placed({"learner": Placed(workload="sums", labels={"of": "a check"})}))
    pod, (how, label) = found["learner"]["template"], annotation
    assert pod["metadata"]["annotations"] == {
        f"{KUEUE}/workload": "sums",
        f"{KUEUE}/podset-{how}-topology": label,
    }
    assert pod["metadata"]["labels"].items() >= {f"{KUEUE}/podset": "learner", "of": "a check"}.items()
    assert pod["spec"]["schedulingGates"] == [{"name": f"{KUEUE}/topology"}]
    assert "schedulingGates" not in found["sampler"]["template"]["spec"], "of another pod set"


def test_samplers_of_whom_some_come_later_are_placed_by_the_scheduler() -> None:
    """They are in several Workloads and made of one template: Kueue would hold some of them back for ever."""
    spec = {
        "sampler": {"replicas": 3, "minReplicas": 1, "topology": {"required": "rack"}},
        "scheduling": {"queue": "team-a"},
    }
    effective = make_plan(spec, make_profile(default=True, pools=POOLS))
    there = effective.placed({"sampler": Placed(workload="sums")})
    assert pod_set_topology(effective.role("sampler")) == {}
    pod = groups(there)["sampler"]["template"]
    assert "schedulingGates" not in pod["spec"]
    assert "annotations" not in pod["metadata"]
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "example.com/rack"
    all_at_once = make_plan(
        {"sampler": {**spec["sampler"], "minReplicas": 3}, "scheduling": spec["scheduling"]},
        make_profile(default=True, pools=POOLS),
    )
    pod = groups(all_at_once.placed({"sampler": Placed(workload="sums")}))["sampler"]["template"]
    assert pod["spec"]["schedulingGates"] == [{"name": f"{KUEUE}/topology"}]
    assert pod_set_topology(all_at_once.role("sampler")) == {"required": "example.com/rack"}
