"""Runs and services of a namespace that wait for each other, against a real kube-apiserver, also over a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube import KubeApi
from operator_inside import run
from operator_process import OperatorProcess

from rl_operator.model.settings import FIELD_MANAGER

WOKEN_SECONDS = 55.0
"""Less than the time after which each that waits looks again of itself."""

TOLD_SECONDS = 240.0
"""For what nobody has to be woken for."""


class Line(OperatorProcess):
    """The operator for one namespace, and who begins in it under a profile with room for one accelerator."""

    def __init__(self, kube: KubeApi, namespace: str, log: Path) -> None:
        super().__init__(kube.kubeconfig, log, f"--namespace={namespace}")
        self.kube, self.namespace = kube, namespace

    def begin(self) -> None:
        """Start it; it works."""
        self.start()
        self.until_works()

    def train(self, name: str) -> None:
        """A run that takes one accelerator."""
        self.kube.apply(run(name, profile="narrow", learner={"pools": ["gpu"]}), namespace=self.namespace)

    def serve(self, name: str) -> None:
        """A service that takes one accelerator."""
        spec = {"profile": "narrow", "pools": ["gpu"], "auth": {"anonymous": True}}
        about = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLPolicyService", "metadata": {"name": name}}
        source = {"from": {"checkpoint": "s3://policies/chat"}}
        self.kube.apply({**about, "spec": spec | source}, namespace=self.namespace)

    def change(self, kind: str, name: str, document: dict[str, Any], *more: str) -> None:
        """Change fields of an object."""
        scope = () if kind == "rlprofile" else ("-n", self.namespace)
        self.kube.kubectl("patch", kind, name, *scope, "--type=merge", "-p", json.dumps(document), *more)

    def delete(self, kind: str, name: str) -> None:
        """It is gone when this returns."""
        self.kube.kubectl("delete", kind, name, "-n", self.namespace)

    @property
    def begun(self) -> list[str]:
        """What KubeRay was asked for."""
        items = self.kube.get("rayjobs,rayservices", "-n", self.namespace)["items"]
        return sorted(f"{one['kind']} {one['metadata']['name']}" for one in items)

    def until_begun(self, *names: str, seconds: float = WOKEN_SECONDS) -> None:
        """Wait until this, and nothing else, has begun."""
        self.until(lambda: self.begun == sorted(names), f"there is {names}", seconds)

    def until_waits(self, kind: str, name: str) -> None:
        """Wait until it is said of a run or a service why it waits."""
        why = f"the runs and services of namespace {self.namespace} would have 2 accelerators with this one, allowed at once"

        def told() -> bool:
            status: dict[str, Any] = self.kube.get(kind, name, "-n", self.namespace).get("status", {})
            return any(
                (one["type"], one["status"], one["reason"]) == ("ClusterReady", "False", "NamespaceLimit")
                and one["message"].startswith(why)
                for one in status.get("conditions", ())
            )

        self.until(told, f"{kind} {name} waits", TOLD_SECONDS)


@pytest.fixture
def line(kube: KubeApi, tmp_path: Path) -> Iterator[Line]:
    """A namespace with an operator of its own."""
    pools = [{"name": "cpu"}, {"name": "gpu", "acceleratorResource": "nvidia.com/gpu"}]
    kube.apply(
        {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingProfile",
            "metadata": {"name": "narrow"},
            "spec": {"pools": pools, "limits": {"perNamespace": {"maxAccelerators": 1}}},
        }
    )
    operator = Line(kube, kube.new_namespace("line"), tmp_path / "operator.log")
    operator.begin()
    try:
        yield operator
        assert "Traceback" not in operator.log.read_text()
    finally:
        operator.kill()
        kube.kubectl("delete", "rlprofile", "narrow")


def test_a_run_waits_for_a_service_and_a_service_for_a_run(line: Line) -> None:
    line.serve("same")
    line.until_begun("RayService same", seconds=TOLD_SECONDS)
    line.train("same")
    line.until_waits("rlrun", "same")
    line.serve("then")
    line.until_waits("rlps", "then")

    line.delete("rlps", "same")
    line.until_begun(
        "RayService same", "RayJob same-1"
    )  # nobody collects here what is left of one that is gone
    line.until_waits("rlps", "then")
    line.delete("rlrun", "same")
    line.until_begun("RayService same", "RayJob same-1", "RayService then")


def test_what_services_hold_and_who_waits_is_known_after_a_restart(line: Line) -> None:
    line.serve("first")
    line.until_begun("RayService first", seconds=TOLD_SECONDS)
    line.serve("second")
    line.until_waits("rlps", "second")
    line.kill()
    line.train("third")
    line.begin()
    line.until_waits("rlrun", "third")
    line.until_waits("rlps", "second")
    assert line.begun == ["RayService first"]

    line.kill()
    line.delete("rlps", "first")
    line.begin()
    line.until_begun("RayService first", "RayService second", seconds=TOLD_SECONDS)
    line.until_waits("rlrun", "third")
    line.delete("rlps", "second")
    line.until_begun("RayService first", "RayService second", "RayJob third-1")


def test_one_that_is_being_deleted_holds_no_place_in_the_line(line: Line) -> None:
    line.train("first")
    line.until_begun("RayJob first-1", seconds=TOLD_SECONDS)
    line.serve("second")
    line.until_waits("rlps", "second")
    line.train("third")
    line.until_waits("rlrun", "third")
    place = ("rlps", "second", "-n", line.namespace)
    line.kube.kubectl(
        "patch", *place, "--type=merge", "-p", '{"metadata": {"finalizers": ["example.com/held"]}}'
    )
    line.kube.kubectl("delete", *place, "--wait=false")
    # Runs have a watch of their own. Of services it is told in order: when this one waits, the deletion is known.
    line.serve("youngest")
    line.until_waits("rlps", "youngest")
    line.delete("rlrun", "first")
    line.until_begun("RayJob first-1", "RayJob third-1")
    line.kube.kubectl("patch", *place, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')


def test_a_policy_is_brought_while_the_pods_of_a_service_wait(line: Line) -> None:
    line.change("rlprofile", "narrow", {"spec": {"limits": {"perNamespace": {"maxAccelerators": 2}}}})
    line.serve("chat")
    line.serve("other")
    line.until_begun("RayService chat", "RayService other", seconds=TOLD_SECONDS)

    def served() -> dict[str, Any]:
        return line.kube.get("rayservice", "chat", "-n", line.namespace, "--show-managed-fields")

    def deployment() -> dict[str, Any]:
        config = yaml.safe_load(served()["spec"]["serveConfigV2"])
        found: dict[str, Any] = config["applications"][1]["deployments"][0]
        return found

    def reason() -> str | None:
        status: dict[str, Any] = line.kube.get("rlps", "chat", "-n", line.namespace).get("status", {})
        conditions = {one["type"]: one["reason"] for one in status.get("conditions", ())}
        return conditions.get("ClusterReady")

    line.change("rlps", "chat", {"spec": {"replicas": {"min": 2}}})
    line.until(lambda: reason() == "UpdateWaits", "two copies wait", TOLD_SECONDS)
    assert deployment() == {"name": "policy", "user_config": {"policy": None}, "num_replicas": 1}
    before = served()

    # As if its copies, which are not here, had been told of it, and were now to go back to the one before.
    told = {"version": "chat-1", "step": 0, "digest": "1" * 64, "source": "s3://policies/chat"}
    candidate = told | {"version": "chat-2", "digest": "2" * 64, "state": "RollingBack", "before": told}
    line.change("rlps", "chat", {"status": {"candidate": candidate}}, "--subresource=status")
    policy = {name: told[name] for name in ("source", "digest", "version")}
    line.until(
        lambda: deployment()["user_config"] == {"policy": policy}, "the policy is there", WOKEN_SECONDS
    )
    assert deployment()["num_replicas"] == 1
    after = served()
    assert after["spec"] == before["spec"] | {"serveConfigV2": after["spec"]["serveConfigV2"]}
    line.until(lambda: owners(served()) == {"Apply"}, "all fields are applied ones", WOKEN_SECONDS)

    line.delete("rlps", "other")
    line.until(lambda: deployment()["num_replicas"] == 2, "there is room", WOKEN_SECONDS)
    assert deployment()["user_config"] == {"policy": policy}
    assert owners(served()) == {"Apply"}


def owners(document: dict[str, Any]) -> set[str]:
    """How the operator has come to own fields of an object's spec."""
    entries = document["metadata"]["managedFields"]
    return {
        one["operation"] for one in entries if one["manager"] == FIELD_MANAGER and "subresource" not in one
    }
