"""What the operator writes, and how, against a real kube-apiserver and in this process: conflicts, ownership, the lease."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml
from kube import KubeApi
from operator_inside import DEADLINE, awaited, connected, look, primed, run

from rl_operator.kube.apply import bring
from rl_operator.kube.wire import ApiError
from rl_operator.model.settings import FINALIZER
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.leader import Leader, Times


@pytest.fixture
def namespace(kube: KubeApi) -> str:
    return kube.new_namespace("conflict")


def conflicts(controller: Controller) -> float:
    return (
        controller.metrics.registry.get_sample_value("rltrain_operator_errors_total", {"reason": "Conflict"})
        or 0
    )


def look_once(kube: KubeApi, namespace: str) -> None:
    """Every run of a namespace is looked at, by an operator of its own."""

    async def work() -> None:
        controller = await primed(kube, namespace)
        try:
            await look(controller)
        finally:
            await controller.api.close()

    asyncio.run(work())


def test_a_conflict_is_tried_again(kube: KubeApi, namespace: str) -> None:
    """A run is deleted and made anew under its name while the operator still knows the old one."""
    document = run("twice")
    del document["spec"]["profile"]

    async def work() -> None:
        kube.apply(document, namespace=namespace)
        controller = await primed(kube, namespace)
        old = kube.get("rlrun", "twice", "-n", namespace)
        kube.kubectl("delete", "rlrun", "twice", "-n", namespace)
        kube.apply(document, namespace=namespace)
        new = kube.get("rlrun", "twice", "-n", namespace)
        workers = asyncio.create_task(controller.run(2))
        try:
            await awaited(lambda: conflicts(controller) >= 1)
            (job,) = kube.get("rayjobs", "-n", namespace)["items"]
            assert job["metadata"]["ownerReferences"][0]["uid"] == old["metadata"]["uid"]
            assert "finalizers" not in kube.get("rlrun", "twice", "-n", namespace)["metadata"]
            # A new look at the new run may have said by now that the names are taken; the old decision is not in it.
            said = kube.get("rlrun", "twice", "-n", namespace).get("status") or {}
            assert (said.get("attempts", []), said.get("phase", "Pending")) == ([], "Pending")
            # What the garbage collector does, and the watch.
            kube.kubectl("delete", "rayjob/twice-1", "-n", namespace)
            for what in ("configmap/twice-1", "networkpolicy/twice", "pdb/twice"):
                kube.kubectl("delete", what, "-n", namespace)
            controller.seen("RayJob", "DELETED", job)
            controller.seen("RLTrainingRun", "DELETED", old)
            controller.seen("RLTrainingRun", "ADDED", new)
            (job,) = await awaited(lambda: kube.get("rayjobs", "-n", namespace)["items"])
            assert job["metadata"]["ownerReferences"][0]["uid"] == new["metadata"]["uid"]
            await awaited(
                lambda: (kube.get("rlrun", "twice", "-n", namespace).get("status") or {}).get("attempts")
            )
        finally:
            workers.cancel()
            await asyncio.gather(workers, return_exceptions=True)
            await controller.api.close()

    asyncio.run(work())


def test_a_status_that_somebody_else_wrote_in_between(kube: KubeApi, namespace: str) -> None:
    document = run("shared")
    del document["spec"]["profile"]

    def stored() -> dict[str, Any]:
        return kube.get("rlrun", "shared", "-n", namespace)

    def patch(status: dict[str, Any]) -> None:
        where = ("patch", "rlrun", "shared", "-n", namespace, "--subresource=status", "--type=merge", "-p")
        kube.kubectl(*where, json.dumps({"status": status}))

    async def work() -> None:
        kube.apply(document, namespace=namespace)
        controller = await primed(kube, namespace)
        try:
            await look(controller)
            job = kube.get("rayjob", "shared-1", "-n", namespace)
            kube.kubectl("delete", "rayjob", "shared-1", "-n", namespace)
            # The version that is known here is old now. Another operator has begun a second attempt: a decision about the
            # first one alone, which is what is known here, would take it away again.
            ended = {"endTime": "2026-01-01T00:00:00Z", "reason": "AppFailed: x"}
            attempts = [stored()["status"]["attempts"][0] | ended, {"number": 2, "rayJob": "shared-2"}]
            patch({"progress": {"phase": "Training", "step": 3}, "attempts": attempts})
            controller.seen("RayJob", "DELETED", job)
            await look(controller)
            status = stored()["status"]
            assert status["progress"]["step"] == 3
            assert [one["number"] for one in status["attempts"]] == [1, 2]
            assert status["attempts"][0]["reason"] == "AppFailed: x"
            assert "deleted by somebody" in status["attempts"][1]["reason"]
            sample = controller.metrics.registry.get_sample_value
            labels = {"verb": "patch", "kind": "RLTrainingRun", "code": "409"}
            assert sample("rltrain_operator_api_calls_total", labels) == 1
        finally:
            await controller.api.close()

    asyncio.run(work())


def test_no_checkpoints_is_kept_though_kubectl_forgets_it(kube: KubeApi, namespace: str) -> None:
    document = run("forgetful", checkpoint=None)
    del document["spec"]["profile"]
    for note in ("first", "second"):
        document["metadata"]["annotations"] = {"example.com/note": note}
        kube.apply(document, namespace=namespace)
    stored = kube.get("rlrun", "forgetful", "-n", namespace)
    assert "checkpoint" not in stored["spec"], "kubectl apply keeps a null: rl_operator.kube.applied can go"

    look_once(kube, namespace)
    (config,) = (
        item
        for item in kube.get("configmaps", "-n", namespace)["items"]
        if item["metadata"]["name"] == "forgetful-1"
    )
    assert yaml.safe_load(config["data"]["run.yaml"])["spec"]["checkpoint"] is None


def test_of_two_operators_one_leads(kube: KubeApi, namespace: str) -> None:
    async def work() -> None:
        apis = [await connected(kube) for _ in range(2)]
        times = Times(lease=15.0, renew=5.0, retry=0.1)
        leaders = [Leader(api, namespace, "lease", f"number-{n}", times) for n, api in enumerate(apis)]
        tasks = [asyncio.create_task(leader.acquire()) for leader in leaders]
        try:
            done, waiting = await asyncio.wait(tasks, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
            assert (len(done), len(waiting)) == (1, 1)
            first = leaders[tasks.index(next(iter(done)))]
            holder = kube.get("lease", "lease", "-n", namespace)["spec"]["holderIdentity"]
            assert holder == first.identity
            await first.release()
            await asyncio.wait_for(next(iter(waiting)), DEADLINE)
            assert kube.get("lease", "lease", "-n", namespace)["spec"]["holderIdentity"] != first.identity
        finally:
            for task in tasks:
                task.cancel()
            for api in apis:
                await api.close()

    asyncio.run(work())


def owners(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Who owns fields of an object, and how; the status apart."""
    entries = document["metadata"]["managedFields"]
    return sorted((one["manager"], one["operation"]) for one in entries if not one.get("subresource"))


def managed(kube: KubeApi, what: str, name: str, namespace: str) -> dict[str, Any]:
    return kube.get(what, name, "-n", namespace, "--show-managed-fields")


def small(name: str, **spec: Any) -> dict[str, Any]:
    """A run that needs no profile."""
    document = run(name, **spec)
    del document["spec"]["profile"]
    return document


def test_what_changes_later_is_applied_from_birth_and_the_rest_is_made_once(
    kube: KubeApi, namespace: str
) -> None:
    kube.apply(small("born"), namespace=namespace)
    look_once(kube, namespace)
    for what in ("pdb", "networkpolicy"):
        assert owners(managed(kube, what, "born", namespace)) == [("rltrain-operator", "Apply")], what
    for what in ("rayjob", "configmap"):
        assert owners(managed(kube, what, "born-1", namespace)) == [("rltrain-operator", "Update")], what
    (secret,) = kube.get("secrets", "-n", namespace)["items"]
    uid = kube.get("rlrun", "born", "-n", namespace)["metadata"]["uid"]
    assert secret["metadata"]["name"] == f"born-1-{uid[:8]}"
    assert secret["immutable"] is True


def test_a_pod_that_may_keep_little_on_its_disk_is_taken(kube: KubeApi, namespace: str) -> None:
    """KubeRay's definitions let any pod pass: one that asks for more than it may have would only never be made."""
    kube.apply(small("little", sampler={"resources": {"ephemeralStorage": "100Mi"}}), namespace=namespace)
    look_once(kube, namespace)
    (_, sampler) = kube.get("rayjob", "little-1", "-n", namespace)["spec"]["rayClusterSpec"][
        "workerGroupSpecs"
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": sampler["template"]["spec"]}
    assert sampler["groupName"] == "sampler"
    kube.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(pod))


def test_what_an_earlier_operator_posted_and_no_render_names_is_dropped(
    kube: KubeApi, namespace: str
) -> None:
    async def work() -> None:
        kube.apply(small("posted"), namespace=namespace)
        controller = await primed(kube, namespace)
        try:
            await look(controller)
            # As an operator before this one made it: POSTed, with a field that is not rendered any more.
            policy = kube.get("networkpolicy", "posted", "-n", namespace)
            kube.kubectl("delete", "networkpolicy", "posted", "-n", namespace)
            for field in ("managedFields", "resourceVersion", "uid", "creationTimestamp"):
                policy["metadata"].pop(field, None)
            policy["metadata"]["labels"]["of-an-earlier-release"] = "yes"
            policy["metadata"]["annotations"] = {"rltrain.dev/manifest": "another"}
            text = json.dumps(policy)
            create = ("create", "--field-manager=rltrain-operator", "-n", namespace, "-f", "-")
            kube.kubectl(*create, stdin=text)
            kube.kubectl("annotate", "networkpolicy", "posted", "kept=by-somebody", "-n", namespace)
            controller.seen("NetworkPolicy", "ADDED", kube.get("networkpolicy", "posted", "-n", namespace))
            await look(controller)
            found = managed(kube, "networkpolicy", "posted", namespace)
            assert "of-an-earlier-release" not in found["metadata"]["labels"]
            assert found["metadata"]["annotations"]["kept"] == "by-somebody"
            assert owners(found) == [("kubectl-annotate", "Update"), ("rltrain-operator", "Apply")]
            controller.seen("NetworkPolicy", "MODIFIED", found)
            version = found["metadata"]["resourceVersion"]
            await look(controller)
            assert (
                kube.get("networkpolicy", "posted", "-n", namespace)["metadata"]["resourceVersion"] == version
            )
        finally:
            await controller.api.close()

    asyncio.run(work())


def test_what_was_deleted_is_not_made_again_by_a_decision_from_before(kube: KubeApi, namespace: str) -> None:
    """A write about an object that is there names its uid; one about a new object names that there is none."""

    async def work() -> None:
        kube.apply(small("late"), namespace=namespace)
        controller = await primed(kube, namespace)
        api = controller.api
        try:
            await look(controller)
            job = kube.get("rayjob", "late-1", "-n", namespace)
            policy = {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "late", "namespace": namespace, "labels": {"changed": "yes"}},
                "spec": {"podSelector": {}},
            }
            uid = kube.get("networkpolicy", "late", "-n", namespace)["metadata"]["uid"]
            with pytest.raises(ApiError) as found:
                await api.apply(policy, new=True)
            assert found.value.conflict
            assert "changed" not in kube.get("networkpolicy", "late", "-n", namespace)["metadata"]["labels"]
            with pytest.raises(ApiError) as found:
                await bring(api, policy, "00000000-0000-0000-0000-000000000000")
            assert found.value.conflict
            assert "changed" not in kube.get("networkpolicy", "late", "-n", namespace)["metadata"]["labels"]
            kube.kubectl("delete", "networkpolicy", "late", "-n", namespace)
            with pytest.raises(ApiError) as found:
                await bring(api, policy, uid)
            assert found.value.conflict
            assert kube.get("networkpolicies", "-n", namespace)["items"] == []
            assert kube.get("rayjob", "late-1", "-n", namespace) == job
        finally:
            await api.close()

    asyncio.run(work())


def test_the_finalizer_of_a_copied_run_goes_too(kube: KubeApi, namespace: str) -> None:
    """`kubectl get -o yaml | kubectl create`: the finalizer is in the copy, and belongs to who made it."""
    document = small("copy", suspend=True)
    document["metadata"]["finalizers"] = ["example.com/other", FINALIZER]
    kube.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(document))
    kube.kubectl("delete", "rlrun", "copy", "-n", namespace, "--wait=false")

    look_once(kube, namespace)
    assert kube.get("rlrun", "copy", "-n", namespace)["metadata"]["finalizers"] == ["example.com/other"]
    kube.kubectl(
        "patch", "rlrun", "copy", "-n", namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
    )
    assert kube.get("rlruns", "-n", namespace)["items"] == []


def test_nothing_is_written_when_the_lease_has_run_out(kube: KubeApi, namespace: str) -> None:
    async def work() -> None:
        kube.apply(small("fenced"), namespace=namespace)
        controller = await primed(kube, namespace)
        now = 0.0
        leader = Leader(controller.api, namespace, "fence", "us", clock=lambda: now)
        controller.api.lease = lambda: leader.left
        try:
            await leader.acquire()
            now += 15.0
            key = await controller.queue.get()
            with pytest.raises(ApiError, match="the lease has run out"):
                await controller.reconcile(key)
            assert kube.get("rayjobs,secrets,configmaps,events", "-n", namespace)["items"] == []
            now += 1.0
            await leader.acquire()
            await controller.reconcile(key)
            assert len(kube.get("rayjobs", "-n", namespace)["items"]) == 1
        finally:
            await controller.api.close()

    asyncio.run(work())
