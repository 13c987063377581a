"""Runs that their queue admits by a Workload of the operator's: asking, waiting, and beginning where it has put them."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    Story,
    condition,
    deleted,
    kinds,
    make_profile,
)
from queued_runs import ASSIGNED, FLAVORS, QUEUED, Queued

from rl_operator.decide.queued import ordinal
from rl_operator.model.seen import QueuePriority
from rl_operator.model.workload import Fact, Line


@pytest.fixture
def run() -> Queued:
    return Queued()


def test_a_run_asks_its_queue_before_anything_of_it_is_made() -> None:
    story = Story(QUEUED)
    decision = story.look()
    assert kinds(decision) == ["Workload"]
    made = decision.create[0]
    assert made["metadata"]["ownerReferences"][0]["uid"] == story.run["metadata"]["uid"]
    sets = {one["name"]: one["count"] for one in made["spec"]["podSets"]}
    assert sets == {"head": 1, "learner": 1, "sampler": 2}, "samplers above the fewest are asked for later"
    assert made["spec"]["queueName"] == "team-a"
    assert "ephemeral-storage" not in str(made), "no queue knows of disks"
    assert condition(decision, "Admitted") == ("False", "Queued", "given to queue team-a")
    assert (decision.status.phase, decision.status.attempts) == ("Pending", [])
    assert decision.finalizer is True


def test_what_kueue_counts_devices_by_is_there_before_the_workload() -> None:
    pools = [{"name": "gpus", "deviceClass": {"name": "gpu.nvidia.com"}}, {"name": "cpu"}]
    story = Story(QUEUED, [make_profile(default=True, pools=pools)])
    decision = story.look()
    assert kinds(decision) == ["ResourceClaimTemplate", "ResourceClaimTemplate", "Workload"]
    named = {one["metadata"]["name"] for one in decision.create[:2]}
    specs = [one["template"]["spec"] for one in decision.create[2]["spec"]["podSets"]]
    claims = [claim for pod in specs for claim in pod.get("resourceClaims", ())]
    assert {claim["resourceClaimTemplateName"] for claim in claims} == named


def test_its_place_is_told_while_it_waits(run: Queued) -> None:
    said = "couldn't assign flavors: insufficient unused quota for cpu in flavor default, 200m more needed"
    decision = run.queue(waits=Fact("Pending", said), line=Line(3, 7))
    found = condition(decision, "Admitted")
    assert found is not None
    assert found[2] == (
        "3rd of 7 in team-a; needs 4 pods, 200m more cpu must come free in flavor default, borrowed quota included "
        f"[{said}]"
    )
    queue = decision.status.queue
    assert queue is not None
    assert (queue.name, queue.workload, queue.position, queue.waiting) == ("team-a", "sums", 3, 7)
    assert condition(decision, "ClusterReady") == condition(decision, "Admitted")
    decision = run.look(line=Line(1, 7))
    assert decision.status.queue is not None
    assert decision.status.queue.position == 1


def test_where_kueue_says_nothing_of_a_run_it_is_told_what_it_says_of_another_of_the_kind(
    run: Queued,
) -> None:
    said = 'topology "default" allows to fit only 1 out of 2 pod(s)'
    found = condition(run.queue(line=Line(2, 2, said)), "Admitted")
    assert found == ("False", "Queued", f"2nd of 2 in team-a; needs 4 pods [{said}]")
    found = condition(run.queue(waits=Fact("Pending", "its own"), line=Line(2, 2, said)), "Admitted")
    assert found == ("False", "Queued", "2nd of 2 in team-a; needs 4 pods [its own]")


@pytest.mark.parametrize(
    ("topology", "replicas", "told"),
    [
        ({"required": "rack"}, 2, "needs 2 nvidia.com/gpu, all learners in one rack"),
        ({"required": "rack"}, 1, "needs 1 nvidia.com/gpu"),
        ({"preferred": "rack"}, 2, "needs 2 nvidia.com/gpu"),
        ({"spread": "rack"}, 2, "needs 2 nvidia.com/gpu"),
        (None, 2, "needs 2 nvidia.com/gpu"),
    ],
)
def test_what_must_be_in_one_place_is_told(topology: dict[str, str] | None, replicas: int, told: str) -> None:
    racks = {"topology": [{"name": "rack", "label": "example.com/rack"}]}
    spec = {
        **QUEUED,
        "learner": {"pools": ["h100"], "replicas": replicas, "topology": topology},
        "sampler": {"replicas": 1, "pools": ["cpu"]},
    }
    run = Queued(spec, pools=[GPU_POOLS[0] | racks, *GPU_POOLS[1:]])
    found = condition(run.queue(line=Line(1, 1)), "Admitted")
    assert found == ("False", "Queued", f"1st of 1 in team-a; {told}")


def test_accelerators_that_are_free_are_told() -> None:
    spec = {
        **QUEUED,
        "learner": {"pools": ["h100"], "replicas": 8},
        "sampler": {"replicas": 1, "pools": ["cpu"]},
    }
    run = Queued(spec, pools=GPU_POOLS)
    said = (
        "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed"
    )
    found = condition(run.queue(waits=Fact("Pending", said), line=Line(1, 1)), "Admitted")
    assert found is not None
    assert found[2].startswith(
        "1st of 1 in team-a; needs 8 nvidia.com/gpu, 4 nvidia.com/gpu free in flavor h100, borrowed quota included ["
    )


_MORE = "insufficient unused quota for nvidia.com/gpu in flavor {}, {} more needed"
_FEW = "couldn't assign flavors to pod set {}: {}"


@pytest.mark.parametrize(
    ("samplers", "said", "told"),
    [
        # 8 of learners and 4 of samplers, of which the first are counted with the second
        ("h100", [("learner", ("h100", 4))], "4 nvidia.com/gpu free in flavor h100"),
        ("h100", [("sampler", ("h100", 4))], "8 nvidia.com/gpu free in flavor h100"),
        (
            "h100",
            [("learner", ("h100", 4)), ("sampler", ("h100", 8))],
            "4 nvidia.com/gpu free in flavor h100",
        ),
        (
            "h100",
            [("sampler", ("h100", 4), ("a100", 2))],
            "4 more nvidia.com/gpu must come free in flavor h100, borrowed quota included; "
            "2 more nvidia.com/gpu must come free in flavor a100",
        ),
        ("a100", [("sampler", ("a100", 1))], "3 nvidia.com/gpu free in flavor a100"),
        (
            "a100",
            [("learner", ("h100", 8)), ("sampler", ("a100", 1))],
            "0 nvidia.com/gpu free in flavor h100, borrowed quota included; 3 nvidia.com/gpu free in flavor a100",
        ),
    ],
)
def test_what_is_free_is_told_where_two_roles_want_of_it(
    samplers: str, said: list[tuple[Any, ...]], told: str
) -> None:
    spec = {
        **QUEUED,
        "learner": {"pools": ["h100"], "replicas": 8},
        "sampler": {"replicas": 4, "minReplicas": 4, "pools": [samplers]},
    }
    run = Queued(spec, pools=[GPU_POOLS[0], GPU_POOLS[0] | {"name": "a100"}, *GPU_POOLS[1:]])
    message = "; ".join(
        _FEW.format(name, ", ".join(_MORE.format(*one) for one in few)) for name, *few in said
    )
    found = condition(run.queue(waits=Fact("Pending", message), line=Line(1, 1)), "Admitted")
    assert found is not None
    assert found[:2] == ("False", "Queued")
    assert found[2].startswith(
        f"1st of 1 in team-a; needs 12 nvidia.com/gpu, {told}, borrowed quota included ["
    )


def test_one_that_was_deactivated_says_what_its_user_can_do(run: Queued) -> None:
    found = condition(run.queue(active=False), "Admitted")
    assert found is not None
    assert found[1] == "Deactivated"
    assert "rltrain suspend and then rltrain resume give the run to its queue anew" in found[2]
    assert "spec.active" not in found[2], "that is for administrators"
    run.story.set({"suspend": True})
    assert deleted(run.look()) == [("Workload", "sums")]
    run.story.set({"suspend": False})
    assert kinds(run.look(workloads=())) == ["Workload"]


_TOO_MUCH = (
    "insufficient quota for nvidia.com/gpu in flavor h100, previously considered podsets requests (0) + current podset "
    "request (16) > maximum capacity (8)"
)


@pytest.mark.parametrize(
    ("reason", "said", "shown"),
    [
        ("Inadmissible", "LocalQueue team-a is terminating or missing", "Inadmissible"),
        ("Suspended", "ClusterQueue all is stopped", "Inadmissible"),
        ("Misconfigured", "ClusterQueue all not found", "Inadmissible"),
        ("Pending", "ClusterQueue all is inactive", "Inadmissible"),
        ("Pending", _FEW.format("learner", _TOO_MUCH), "Inadmissible"),
        ("Pending", f"couldn't assign flavors: {_TOO_MUCH}", "Inadmissible"),
        (
            "Pending",
            f"{_FEW.format('head', _MORE.format('cpu', 1))}; {_FEW.format('learner', _TOO_MUCH)}",
            "Inadmissible",
        ),
        (
            "Pending",
            _FEW.format(
                "learner", "flavor h100 doesn't match node affinity, untolerated taint {x} in flavor spot"
            ),
            "Inadmissible",
        ),
        ("Pending", _FEW.format("learner", f"{_TOO_MUCH}, {_MORE.format('a100', 4)}"), "Queued"),
        (
            "Pending",
            _FEW.format(
                "learner", 'flavor cpu doesn\'t match node affinity, topology "racks" allows to fit only 1'
            ),
            "Queued",
        ),
        ("Pending", _FEW.format("learner", _MORE.format("h100", 4)), "Queued"),
        ("Preempted", "Preempted to accommodate a workload", "Queued"),
    ],
)
def test_what_its_queue_will_never_admit_is_not_only_queued(
    run: Queued, reason: str, said: str, shown: str
) -> None:
    found = condition(run.queue(waits=Fact(reason, said), line=Line(1, 1)), "Admitted")
    assert found is not None
    assert found[1] == shown
    assert "1st of 1 in team-a" in found[2]


def test_what_no_quota_will_ever_hold_is_told(run: Queued) -> None:
    said = (
        "couldn't assign flavors to pod set learner: insufficient quota for cpu in flavor default, previously considered "
        "podsets requests (200m) + current podset request (8) > maximum capacity (4)"
    )
    found = condition(run.queue(waits=Fact("ExceedsMaxQuota", said)), "Admitted")
    assert found is not None
    assert "flavor default never has more than 4 cpu" in found[2]


def test_an_admitted_run_begins_where_the_queue_has_put_it(run: Queued) -> None:
    decision = run.admit()
    assert kinds(decision)[-1] == "RayJob"
    ray_job = decision.create[-1]
    assert "kueue.x-k8s.io/queue-name" not in ray_job["metadata"]["labels"]
    assert "suspend" not in ray_job["spec"]
    spec = ray_job["spec"]["rayClusterSpec"]
    learner = next(one for one in spec["workerGroupSpecs"] if one["groupName"] == "learner")["template"][
        "spec"
    ]
    assert learner["nodeSelector"] == {"gpu": "h100"}
    assert {"key": "gpu", "operator": "Exists"} in learner["tolerations"]
    assert "nodeSelector" not in spec["headGroupSpec"]["template"]["spec"]
    assert condition(decision, "Admitted") == (
        "True",
        "Admitted",
        "queue team-a has admitted the run on cpu, h100",
    )
    assert [one.number for one in decision.status.attempts] == [1]
    assert decision.status.queue is not None
    assert decision.status.queue.flavors == ["cpu", "h100"]


def test_a_flavor_that_cannot_be_read_holds_the_run_back(run: Queued) -> None:
    decision = run.queue(reserved=True, admitted=True, assigned=ASSIGNED, flavors={})
    found = condition(decision, "Admitted")
    assert found is not None
    assert found[1] == "FlavorMissing"
    assert decision.create == ()


def test_checks_are_waited_for(run: Queued) -> None:
    decision = run.queue(
        reserved=True, assigned=ASSIGNED, flavors=FLAVORS, checks="provisioning: 2 nodes to come"
    )
    found = condition(decision, "Admitted")
    assert found == (
        "False",
        "AdmissionCheck",
        "queue team-a has quota for the run, and waits for provisioning: 2 nodes to come",
    )


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        ({"kueue": False}, "KueueMissing"),
        (
            {"priority": QueuePriority(missing="there is no WorkloadPriorityClass 'x'")},
            "PriorityClassMissing",
        ),
    ],
)
def test_what_keeps_it_from_its_queue(world: dict[str, Any], reason: str) -> None:
    decision = Story(QUEUED).look(**world)
    found = condition(decision, "Admitted")
    assert found is not None
    assert found[1] == reason
    assert not any(one["kind"] == "Workload" for one in decision.create)


def test_a_run_that_changes_while_it_waits_keeps_its_place(run: Queued) -> None:
    run.queue()
    run.story.set({"sampler": {"minReplicas": 3}})
    decision = run.look()
    assert [one["kind"] for one in decision.apply] == ["Workload"]
    assert (decision.create, decision.delete) == ((), ())


def test_one_that_changes_with_quota_and_without_pods_asks_anew(run: Queued) -> None:
    run.story.set({"sampler": {"minReplicas": 3}})
    decision = run.admit()
    assert deleted(decision) == [("Workload", "sums")]
    assert decision.status.attempts == []


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (23, "23rd"),
        (111, "111th"),
    ],
)
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text
