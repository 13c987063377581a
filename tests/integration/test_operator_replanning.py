"""A driver that wants another placement, before a real kube-apiserver: the next attempt has it, and keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kube import KubeApi
from operator_inside import run
from operator_process import OperatorProcess
from played_kuberay import KubeRay, driver

WANTED: dict[str, Any] = {
    "mode": "disaggregated",
    "samplers": 2,
    "learners": 1,
    "wanted": {
        "mode": "hybrid",
        "sharedSamplers": 1,
        "partGroups": 4,
        "handOverAt": 0.5,
        "residency": "keep",
        "predictedStepSeconds": 3.0,
        "reason": "it is faster",
    },
}


def workers(job: dict[str, Any]) -> dict[str, int]:
    """The most pods of each worker group of a RayJob."""
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return {one["groupName"]: one["maxReplicas"] for one in groups}


def test_a_run_is_given_the_placement_that_its_driver_wants(kube: KubeApi, tmp_path: Path) -> None:
    namespace = kube.new_namespace("replanning")
    kuberay = KubeRay(kube, namespace)
    profile = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": namespace},
        "spec": {"pools": [{"name": "cpu"}]},
    }
    mine = run("moved", profile=namespace, placement={"replan": {}}, sampler={"replicas": 2})
    kube.apply(profile)
    kube.apply(mine, namespace=namespace)

    def there(what: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = kube.get(what, "-n", namespace)["items"]
        return items

    def begun(job: str) -> dict[str, Any] | None:
        return next((one for one in there("rayjobs") if one["metadata"]["name"] == job), None)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = there("rlruns")[0].get("status", {})
        return found

    with driver(WANTED) as url:
        operator = OperatorProcess(
            kube.kubeconfig, tmp_path / "operator.log", f"--namespace={namespace}", f"--driver-url={url}"
        )
        operator.start()
        try:
            made = operator.until(lambda: begun("moved-1"), "the first attempt begins")
            assert workers(made) == {"learner": 1, "sampler": 2}
            cluster = kuberay.make_cluster(made)
            head = cluster["spec"]["headGroupSpec"]
            kuberay.start_pod(kuberay.make_pod(cluster, head, "head", "somewhere"))
            kuberay.start_job(cluster)
            operator.until(lambda: begun("moved-1") is None, "a checkpoint is written, and its RayJob goes")
            assert status()["placement"]["next"]["sharedSamplers"] == 1
            kuberay.end_pods()
            made = operator.until(lambda: begun("moved-2"), "the next attempt begins")
            operator.until(lambda: len(status()["attempts"]) == 2, "the status says so")
        finally:
            operator.kill()
            # Where there is a profile, runs of other tests must name theirs.
            kube.kubectl("delete", "rltrainingprofile", namespace)
    assert workers(made) == {"learner": 1, "sampler": 1}
    (config,) = [one for one in there("configmaps") if one["metadata"]["name"] == "moved-2"]
    placement = yaml.safe_load(config["data"]["run.yaml"])["spec"]["placement"]
    assert (placement["mode"], placement["sharedSamplers"], placement["partGroups"]) == ("auto", 1, 4)
    assert placement["residency"] == "auto", "the next attempt decides it by its own devices"
    found = status()
    first, second = found["attempts"]
    assert first["reason"] == (
        "Replanned: from placement disaggregated to hybrid (sharedSamplers 1, hand-over at 50%, parts of 4 groups): "
        "it is faster"
    )
    assert second["fromStep"] > 3, "of the checkpoint that was asked for"
    assert (found["placement"]["mode"], found["placement"]["planned"]["attempt"]) == ("hybrid", 1)
    assert "next" not in found["placement"]
