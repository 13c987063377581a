"""Objects that nobody can read, or act on, among others: against a real kube-apiserver, with the operator as a process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import KubeApi
from operator_inside import run
from operator_process import OperatorProcess

from rl_api.crd import definitions

DEEP = 1_200
LARGE = {"environment": "reasoning-gym", "name": "chain_sum", "args": {"words": "a" * 70_000}}


@pytest.fixture
def namespace(kube: KubeApi) -> str:
    return kube.new_namespace("odd")


@pytest.fixture
def operator(kube: KubeApi, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Not started yet."""
    process = OperatorProcess(kube.kubeconfig, tmp_path / "operator.log", f"--namespace={namespace}")
    yield process
    process.kill()


def put(kube: KubeApi, namespace: str, name: str, **spec: Any) -> None:
    kube.apply(run(name, **({"profile": None} | spec)), namespace=namespace)


def status_of(kube: KubeApi, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = kube.get("rlrun", name, "-n", namespace).get("status", {})
    return found


def accepted(kube: KubeApi, namespace: str, name: str) -> dict[str, Any]:
    conditions = status_of(kube, namespace, name).get("conditions", [])
    return next((one for one in conditions if one["type"] == "Accepted"), {})


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.4)
    return True


def starts(kube: KubeApi, namespace: str, operator: OperatorProcess, name: str) -> None:
    operator.until(lambda: status_of(kube, namespace, name).get("phase") == "Starting", f"run {name} starts")


def allow_attempts_from(kube: KubeApi, least: int) -> None:
    """The definition as another version might have it."""
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/attempts/items"
    change = [{"op": "replace", "path": f"{schema}/properties/number/minimum", "value": least}]
    kube.kubectl("patch", "crd", "rltrainingruns.rltrain.dev", "--type=json", "-p", json.dumps(change))


def test_a_run_nested_too_deeply_is_refused_and_the_others_go_on(
    kube: KubeApi, namespace: str, operator: OperatorProcess
) -> None:
    document = run("deep")
    document["spec"].pop("profile")
    text = json.dumps(document)
    deep = '{"a":' * DEEP + "1" + "}" * DEEP
    text = text.replace('"name": "chain_sum"', f'"name": "chain_sum", "args": {deep}')
    kube.kubectl("create", "-n", namespace, "-f", "-", stdin=text)
    put(kube, namespace, "before")
    operator.start()
    operator.until_works()
    starts(kube, namespace, operator, "before")
    put(kube, namespace, "after")  # comes through a watch
    starts(kube, namespace, operator, "after")
    kube.kubectl("annotate", "rlrun", "deep", "-n", namespace, "seen=again")

    def sentence() -> str:
        got = kube.kubectl(
            "get", "rlrun", "deep", "-n", namespace, "-o", "jsonpath={.status.conditions}"
        ).stdout
        return next((one["message"] for one in json.loads(got or "[]") if one["type"] == "Accepted"), "")

    said = operator.until(sentence, "the status says why")
    assert said == "spec.task.args: found values nested more than 64 levels deep, allowed: at most 64"
    assert "Traceback" not in operator.log.read_text()
    operator.kill()
    operator.start()
    operator.until_works()


def test_a_status_that_cannot_be_read_is_left_as_it_is(
    kube: KubeApi, namespace: str, operator: OperatorProcess
) -> None:
    """The definition of a newer version lets in what this one does not know."""
    put(kube, namespace, "done")
    status: dict[str, Any] = {
        "phase": "Succeeded",
        "attempts": [{"number": 0, "rayJob": "done-0"}],  # a version that counts from 0
        "conditions": [{"type": "Succeeded", "status": "True", "reason": "Succeeded", "message": "done"}],
    }
    allow_attempts_from(kube, 0)
    try:
        change = json.dumps({"status": status})
        where = (
            "patch",
            "rlrun",
            "done",
            "-n",
            namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            change,
        )
        assert wait_for(lambda: kube.kubectl(*where, check=False).returncode == 0), (
            "the definition is not served"
        )
        put(kube, namespace, "other")
        operator.start()
        operator.until_works()
        said = operator.until(lambda: accepted(kube, namespace, "done"), "the condition is there")
        assert (said["status"], said["reason"]) == ("Unknown", "StatusUnreadable")
        assert said["message"].startswith("the status cannot be read: status.attempts[0].number: found 0")
        starts(kube, namespace, operator, "other")
        after = status_of(kube, namespace, "done")
        assert after.pop("conditions") == [status["conditions"][0], said]
        assert after == {"phase": "Succeeded", "attempts": status["attempts"]}
        jobs = kube.get("rayjobs", "-n", namespace)["items"]
        assert [job["metadata"]["name"] for job in jobs] == ["other-1"]
        # Looked at again and again, it is said and written once.
        version = kube.get("rlrun", "done", "-n", namespace)["metadata"]["resourceVersion"]
        put(kube, namespace, "third")
        starts(kube, namespace, operator, "third")
        operator.until(
            lambda: operator.metrics().get("rltrain_operator_unreadable_runs") == 1, "the metric says it"
        )
        assert operator.log.read_text().count("nothing is done with this run") == 1
        assert kube.get("rlrun", "done", "-n", namespace)["metadata"]["resourceVersion"] == version
    finally:
        allow_attempts_from(kube, 1)


def test_a_queue_without_kueue_starts_no_pods_and_has_admitted_nobody(
    kube: KubeApi, namespace: str, operator: OperatorProcess
) -> None:
    put(kube, namespace, "queued", scheduling={"queue": "team-a", "integration": "label"})
    operator.start()
    operator.until_works()

    def admission() -> dict[str, Any]:
        conditions = status_of(kube, namespace, "queued").get("conditions", [])
        found = next((one for one in conditions if one["type"] == "Admitted"), {})
        return found if found.get("status") == "False" else {}

    said = operator.until(admission, "it is said that nobody admits it")
    assert said["reason"] == "KueueMissing"
    job = kube.get("rayjob", "queued-1", "-n", namespace)
    assert job["spec"]["suspend"] is True


def without_bounds(kube: KubeApi) -> None:
    """The definition as it was before a run's numbers and texts had bounds."""
    definition = definitions()["rltrainingruns"]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    sampler = schema["properties"]["spec"]["properties"]["sampler"]["properties"]
    del sampler["replicas"]["maximum"]
    image = schema["properties"]["spec"]["properties"]["image"]
    del image["pattern"], image["maxLength"]
    kube.kubectl("replace", "-f", "-", stdin=json.dumps(definition))


def test_what_was_stored_before_there_were_bounds_is_shown_once_and_can_still_be_changed(
    kube: KubeApi, namespace: str, operator: OperatorProcess
) -> None:
    without_bounds(kube)
    try:
        many = run("many", profile=None, sampler={"replicas": 1_000_000})
        said = wait_for(
            lambda: (
                kube.kubectl(
                    "create", "-n", namespace, "-f", "-", stdin=json.dumps(many), check=False
                ).returncode
                == 0
            )
        )
        assert said, "the definition is not served"
        put(kube, namespace, "image", image="x:1\n" + "a" * 5_000)
        put(kube, namespace, "large", task=LARGE)
    finally:
        kube.kubectl("replace", "-f", "-", stdin=json.dumps(definitions()["rltrainingruns"]))
    refused = run("refused", profile=None, sampler={"replicas": 1_000_000})
    assert wait_for(
        lambda: (
            kube.kubectl(
                "create",
                "-n",
                namespace,
                "--dry-run=server",
                "-f",
                "-",
                stdin=json.dumps(refused),
                check=False,
            ).returncode
            != 0
        )
    )
    operator.start()
    operator.until_works()
    for name, sentence in (
        ("many", "spec.sampler.replicas: found 1000000, allowed: a whole number >= 1 and <= 4096"),
        ("image", "spec.image: found 'x:1\\naaaa"),
        ("large", "spec: found 71"),
    ):
        found = operator.until(lambda name=name: accepted(kube, namespace, name), f"{name} is refused")
        assert (found["status"], found["reason"]) == ("False", "InvalidSpec")
        assert found["message"].startswith(sentence)
    put(kube, namespace, "other")
    starts(kube, namespace, operator, "other")
    # What is not changed is not checked again: a person may still suspend and delete it.
    for name in ("many", "image", "large"):
        kube.kubectl(
            "patch", "rlrun", name, "-n", namespace, "--type=merge", "-p", '{"spec":{"suspend":true}}'
        )
        kube.kubectl("delete", "rlrun", name, "-n", namespace)
    assert "Traceback" not in operator.log.read_text()
    assert not [name for name in operator.metrics() if "errors_total{" in name and "Conflict" not in name]
