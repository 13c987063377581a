from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_worlds import GPU_POOLS, make_plan, make_profile

from rl_operator.model.gangs import POD_GROUPS
from rl_operator.model.names import Manifest
from rl_operator.model.parse import parse_ray
from rl_operator.model.workload import Placed
from rl_operator.plan.effective import Effective
from rl_operator.render.gang.gang import as_gang
from rl_operator.render.objects import attempt_objects
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job

DATA = Path(__file__).parent / "data"
SPEC: dict[str, Any] = {
    "sampler": {"pools": ["spot"], "replicas": 4, "minReplicas": 2},
    "learner": {"pools": ["h100"], "replicas": 2},
}
QUEUES = {"volcano": "research", "kai": "research", "yunikorn": "root.research"}
SCHEDULERS = ("volcano", "kai", "yunikorn", "schedulerPlugins", "kubernetes")


def effective(scheduler: str | None, **spec: Any) -> Effective:
    gang = {"scheduler": scheduler, "queue": QUEUES.get(scheduler)} if scheduler else None
    allow = {"priorityClasses": ["research"]}
    return make_plan(SPEC | spec, make_profile(default=True, pools=GPU_POOLS, gang=gang, allow=allow))


def made(scheduler: str, served: str = "", **spec: Any) -> list[Manifest]:
    plan = effective(scheduler, **spec)
    return as_gang(plan, 1, ray_job(plan, 1), served)


def templates(ray: Manifest) -> dict[str, Manifest]:
    """Templates of pods by group."""
    spec = ray["spec"].get("rayClusterSpec", ray["spec"])
    found = {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
    return {"headgroup": spec["headGroupSpec"]["template"], **found}


def only(values: list[Any]) -> Any:
    """The one value that all of them are."""
    assert all(value == values[0] for value in values), values
    return values[0]


class TestWithoutAGang:
    def test_nothing_is_added(self) -> None:
        plan = effective(None)
        assert as_gang(plan, 1, ray_job(plan, 1)) == [ray_job(plan, 1)]


class TestAllSchedulers:
    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_what_was_rendered_stays_and_is_not_changed_in_place(self, scheduler: str) -> None:
        plan = effective(scheduler)
        bare, again = ray_job(plan, 1), ray_job(plan, 1)
        *_, ray = as_gang(plan, 1, bare)
        assert bare == again
        for group, template in templates(bare).items():
            placed = templates(ray)[group]
            for part in ("labels", "annotations"):
                assert template["metadata"].get(part, {}).items() <= placed["metadata"].get(part, {}).items()
            assert template["spec"].items() <= placed["spec"].items()
        assert bare["metadata"]["labels"].items() <= ray["metadata"]["labels"].items()
        assert bare["metadata"]["annotations"].items() <= ray["metadata"]["annotations"].items()

    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_a_cluster_to_work_in_is_a_gang_too(self, scheduler: str) -> None:
        plan = effective(scheduler, workload="Cluster")
        *_, cluster = as_gang(plan, 1, ray_cluster(plan, 1))
        job = made(scheduler, workload="Cluster")[-1]
        assert {group: one["metadata"] for group, one in templates(cluster).items()} == {
            group: one["metadata"] for group, one in templates(job).items()
        }

    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_labels_are_as_kubernetes_takes_them(self, scheduler: str) -> None:
        ray = made(scheduler)[-1]
        for labels in (
            ray["metadata"]["labels"],
            *(one["metadata"]["labels"] for one in templates(ray).values()),
        ):
            assert all(len(value) <= 63 for value in labels.values())

    @pytest.mark.parametrize("scheduler", POD_GROUPS)
    def test_the_pod_group_comes_before_the_pods_and_the_job_says_which_it_is(self, scheduler: str) -> None:
        objects = attempt_objects(effective(scheduler), 1, b"key")
        assert [one["kind"] for one in objects] == ["Secret", "ConfigMap", "PodGroup", "RayJob"]
        assert objects[2]["metadata"]["ownerReferences"] == objects[3]["metadata"]["ownerReferences"]
        kind = parse_ray({"kind": "RayJob", **objects[3]}).pod_group
        assert kind in POD_GROUPS[scheduler]  # type: ignore[index]
        assert kind == f"PodGroup.{'.'.join(reversed(objects[2]['apiVersion'].split('/')))}"

    @pytest.mark.parametrize("scheduler", ["kai", "yunikorn"])
    def test_these_make_their_own(self, scheduler: str) -> None:
        (ray,) = made(scheduler)
        assert parse_ray(ray).pod_group == ""


class TestVolcano:
    def test_the_pod_group_counts_the_pods_with_which_the_attempt_begins(self) -> None:
        group, ray = made("volcano", scheduling={"priorityClass": "research"})
        assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
        # KubeRay would make it under this name, and leaves one that is there.
        assert group["metadata"]["name"] == "ray-sums-1-pg"
        assert group["spec"] == {
            "minMember": 5,
            "minResources": {
                "cpu": "4200m",
                "ephemeral-storage": str(5 * 256 * 2**20),
                "memory": str((2 + 4 * 16) * 2**30),
                "nvidia.com/gpu": "2",
                "nvidia.com/mig-1g.10gb": "2",
            },
            "queue": "research",
            "priorityClassName": "research",
        }
        wanted = {"volcano.sh/queue-name": "research", "ray.io/priority-class-name": "research"}
        assert wanted.items() <= ray["metadata"]["labels"].items()
        for name, template in templates(ray).items():
            assert template["spec"]["schedulerName"] == "volcano"
            assert wanted.items() <= template["metadata"]["labels"].items()
            assert template["metadata"]["annotations"] == {
                "scheduling.k8s.io/group-name": "ray-sums-1-pg",
                "volcano.sh/task-spec": name,
            }

    def test_without_a_queue_it_is_the_default_one(self) -> None:
        plan = make_plan(profile=make_profile(default=True, gang={"scheduler": "volcano"}))
        group, ray = as_gang(plan, 1, ray_job(plan, 1))
        assert set(group["spec"]) == {"minMember", "minResources"}
        assert "volcano.sh/queue-name" not in ray["metadata"]["labels"]


class TestKai:
    def test_scheduler_and_queue(self) -> None:
        (ray,) = made("kai")
        assert ray["spec"]["submissionMode"] == "HTTPMode"  # it refuses a submitter's pod
        assert ray["metadata"]["labels"]["kai.scheduler/queue"] == "research"
        pods = templates(ray).values()
        assert only([one["spec"]["schedulerName"] for one in pods]) == "kai-scheduler"
        assert only([one["metadata"]["labels"]["kai.scheduler/queue"] for one in pods]) == "research"

    def test_its_grouper_counts_the_fewest(self) -> None:
        """It takes `minReplicas` of each group, and refuses one with fewer `replicas`."""
        (ray,) = made("kai")
        groups = ray["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        assert [(one["minReplicas"], one["replicas"]) for one in groups] == [(2, 2), (2, 2)]


class TestYunikorn:
    def test_every_pod_has_all_groups(self) -> None:
        (ray,) = made("yunikorn")
        pods = templates(ray)
        groups = json.loads(
            only([one["metadata"]["annotations"]["yunikorn.apache.org/task-groups"] for one in pods.values()])
        )
        assert {one["name"]: one["minMember"] for one in groups} == {
            "headgroup": 1,
            "learner": 2,
            "sampler": 2,
        }
        for name, pod in pods.items():
            found = next(one for one in groups if one["name"] == name)
            assert pod["metadata"]["annotations"]["yunikorn.apache.org/task-group-name"] == name
            # A placeholder holds room where the pod may go, and nowhere else.
            for part in ("nodeSelector", "tolerations", "affinity"):
                assert found.get(part) == pod["spec"].get(part)
        learner = next(one for one in groups if one["name"] == "learner")
        assert learner["minResource"]["nvidia.com/gpu"] == "1"
        assert learner["nodeSelector"] == {"gpu": "h100"}
        assert only([one["spec"]["schedulerName"] for one in pods.values()]) == "yunikorn"

    def test_nothing_is_held_for_ever_and_no_pod_is_placed_alone(self) -> None:
        (ray,) = made("yunikorn")
        annotations = templates(ray)["headgroup"]["metadata"]["annotations"]
        parameters = "placeholderTimeoutInSeconds=300 gangSchedulingStyle=Hard"
        assert annotations["yunikorn.apache.org/schedulingPolicyParameters"] == parameters

    def test_each_attempt_is_an_application_of_its_own_and_so_is_one_that_is_made_anew(self) -> None:
        plan = effective("yunikorn")
        labels = []
        for attempt, preemptions in ((1, 0), (1, 1), (2, 0)):
            (ray,) = as_gang(plan, attempt, ray_job(plan, attempt), preemptions=preemptions)
            own = ray["metadata"]["labels"]
            labels.append(own["yunikorn.apache.org/app-id"])
            assert own["ray.io/gang-scheduling-enabled"] == "true"
            assert own["yunikorn.apache.org/queue"] == "root.research"
            pods = [one["metadata"]["labels"] for one in templates(ray).values()]
            assert only([one["applicationId"] for one in pods]) == labels[-1]
            assert only([one["queue"] for one in pods]) == "root.research"
        assert labels == ["team-a.sums-1-12345678", "team-a.sums-1-12345678-1", "team-a.sums-2-12345678"]


class TestSchedulerPlugins:
    def test_a_pod_group_and_pods_that_name_it(self) -> None:
        group, ray = made("schedulerPlugins")
        assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
        assert group["metadata"]["name"] == "sums-1"
        assert group["spec"]["minMember"] == 5
        assert group["spec"]["minResources"]["nvidia.com/gpu"] == "2"
        pods = templates(ray).values()
        assert only([one["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for one in pods]) == "sums-1"
        assert only([one["spec"]["schedulerName"] for one in pods]) == "scheduler-plugins-scheduler"
        # KubeRay's plug-in for it would take no RayJob.
        assert "ray.io/gang-scheduling-enabled" not in ray["metadata"]["labels"]

    def test_kueue_may_say_when_it_begins(self) -> None:
        group, ray = made("schedulerPlugins", scheduling={"queue": "team-a", "integration": "label"})
        assert ray["spec"]["suspend"] is True
        # By a label it admits all samplers, and no fewer; the gang is what was admitted.
        assert group["spec"]["minMember"] == 7


class TestKubernetes:
    @pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3"])
    def test_the_version_is_that_of_the_server(self, version: str) -> None:
        group, ray = made("kubernetes", f"PodGroup.{version}.scheduling.k8s.io")
        assert group["apiVersion"] == f"scheduling.k8s.io/{version}"
        assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 5}}}
        assert parse_ray(ray).pod_group == f"PodGroup.{version}.scheduling.k8s.io"

    def test_no_pod_is_placed_before_it_is_a_member(self) -> None:
        _, ray = made("kubernetes")
        for pod in templates(ray).values():
            assert pod["metadata"]["labels"]["rltrain.dev/pod-group"] == "sums-1"
            assert pod["spec"]["schedulingGates"] == [{"name": "rltrain.dev/pod-group"}]
            assert "schedulerName" not in pod["spec"]
            assert "schedulingGroup" not in pod["spec"]  # KubeRay's definitions drop it

    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_a_pod_that_kueue_gives_its_place_waits_for_that_too(self, scheduler: str) -> None:
        plan = effective(scheduler).placed({"learner": Placed(workload="w")})
        *_, ray = as_gang(plan, 1, ray_job(plan, 1))
        gates = [gate["name"] for gate in templates(ray)["learner"]["spec"]["schedulingGates"]]
        own = ["rltrain.dev/pod-group"] if scheduler == "kubernetes" else []
        assert gates == ["kueue.x-k8s.io/topology", *own]


def test_one_gang_of_each_scheduler_as_yaml() -> None:
    """After a change that is meant: write `text` into the file, and read the difference."""
    parts = []
    for scheduler in SCHEDULERS:
        *before, ray = made(scheduler)
        bare = ray_job(effective(scheduler), 1)
        own = {
            name: text
            for name, text in ray["metadata"]["labels"].items()
            if name not in bare["metadata"]["labels"]
        }
        learner, was = templates(ray)["learner"], templates(bare)["learner"]
        added = {
            part: {
                name: text
                for name, text in learner["metadata"].get(part, {}).items()
                if name not in was["metadata"].get(part, {})
            }
            for part in ("labels", "annotations")
        }
        spec = {name: value for name, value in learner["spec"].items() if name not in was["spec"]}
        pod = {"metadata": {part: found for part, found in added.items() if found}, "spec": spec}
        parts.append(
            {"scheduler": scheduler, "objects": before, "labels of the RayJob": own, "learner's pod": pod}
        )
    text = yaml.safe_dump_all(parts, sort_keys=False, width=110)
    assert text == (DATA / "gangs.yaml").read_text()
