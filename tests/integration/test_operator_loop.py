"""The operator's loop against a real kube-apiserver: what it writes, what it does not, and what it survives."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import KubeApi, kuberay_definitions
from operator_inside import run
from operator_process import OperatorProcess

from rl_operator.model.settings import FINALIZER

NOT_GIVEN_UP, TRIES = "the lease was not given up: ", 5
"""What an operator says to whom a busy API server has not answered within the seconds that it has for that at its end."""

OURS = "rlruns,rayjobs,configmaps,secrets,networkpolicies,poddisruptionbudgets,events"


class Operator(OperatorProcess):
    """The operator for one namespace, and what is in it."""

    def __init__(self, kube: KubeApi, namespace: str, folder: Path) -> None:
        super().__init__(kube.kubeconfig, folder / "operator.log", f"--namespace={namespace}")
        self.kube, self.namespace = kube, namespace

    def start(self) -> None:
        super().start()
        self.until_works()

    def apply(self, *names: str, **spec: Any) -> None:
        self.kube.apply(*(run(name, **spec) for name in names), namespace=self.namespace)

    def get(self, what: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.kube.get(what, "-n", self.namespace)["items"]
        return items

    def kubectl(self, *arguments: str) -> None:
        self.kube.kubectl(*arguments, "-n", self.namespace)

    def of(self, name: str, what: str = OURS) -> dict[str, list[dict[str, Any]]]:
        """What there is of a run, by kind."""
        found: dict[str, list[dict[str, Any]]] = {}
        for item in self.get(what):
            about = item.get("involvedObject", {}).get("name")
            if name in (
                item["metadata"]["name"],
                item["metadata"].get("labels", {}).get("rltrain.dev/run"),
                about,
            ):
                found.setdefault(item["kind"], []).append(item)
        return found

    def status(self, name: str) -> dict[str, Any]:
        item = self.kube.get("rlrun", name, "-n", self.namespace)
        status: dict[str, Any] = item.get("status", {})
        return status

    def starting(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Everything of a run, once all of it is there."""
        self.until(lambda: self.status(name).get("phase") == "Starting", f"run {name} starts")
        self.until(lambda: self.of(name, "events"), f"run {name} has an event")
        return self.of(name)

    def taken_up(self) -> None:
        """What KubeRay, which is not here, does first: after a minute without it the status says so."""
        status = json.dumps({"status": {"jobDeploymentStatus": "Initializing"}})
        for job in self.get("rayjobs"):
            name = job["metadata"]["name"]
            self.kubectl("patch", "rayjob", name, "--subresource=status", "--type=merge", "-p", status)
        # Profiles have a watch of their own: runs may be looked at for those before this is heard of.
        ignored = "KubeRay has not taken up"
        self.until(lambda: ignored not in json.dumps(self.get("rlruns")), "the operator has heard of it")

    def versions(self) -> dict[tuple[str, str], str]:
        return {
            (item["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"]
            for item in self.get(OURS)
        }


@pytest.fixture(scope="module")
def place(kube: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A namespace with an operator of its own."""
    profile = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": "loop"},
        "spec": {"pools": [{"name": "cpu"}]},
    }
    kube.apply(profile)
    operator = Operator(kube, kube.new_namespace("loop"), tmp_path_factory.mktemp("operator"))
    try:
        yield operator
    finally:
        operator.kill()
        kube.kubectl("delete", "rlprofile", "loop")


@pytest.fixture
def operator(place: Operator) -> Iterator[Operator]:
    """It works when a test begins, and has reported nothing unexpected when it ends."""
    if not place.running:
        place.start()
    yield place
    assert "Traceback" not in place.log.read_text()


def look_again(operator: Operator) -> None:
    """Have every run looked at once more though nothing of it has changed."""
    before, runs = operator.looks, len(operator.get("rlruns"))
    operator.kube.kubectl("annotate", "--overwrite", "rlprofile", "loop", f"looked-at={time.monotonic()}")
    operator.until(lambda: operator.looks >= before + runs, "all runs are looked at again")


def test_a_run_gets_its_objects_in_few_writes(operator: Operator) -> None:
    before = operator.writes
    operator.apply("sums")
    found = operator.starting("sums")
    kinds = {
        "RLTrainingRun",
        "RayJob",
        "ConfigMap",
        "Secret",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Event",
    }
    assert set(found) == kinds
    (stored,) = found["RLTrainingRun"]
    assert stored["metadata"]["finalizers"] == [FINALIZER]
    for kind in kinds - {"RLTrainingRun", "Event"}:
        (item,) = found[kind]
        (owner,) = item["metadata"]["ownerReferences"]
        assert owner["uid"] == stored["metadata"]["uid"], kind
    assert [one["rayJob"] for one in stored["status"]["attempts"]] == ["sums-1"]
    assert 7 <= operator.writes - before <= 12


def test_metrics_show_a_run_until_it_is_gone(operator: Operator) -> None:
    operator.apply("shown")
    operator.starting("shown")
    labels = f'namespace="{operator.namespace}"'
    waits = f'rltrain_run_waits{{condition="ClusterReady",{labels},reason="'
    operator.until(
        lambda: [one for one in operator.metrics() if one.startswith(waits) and one.endswith('run="shown"}')],
        "the metrics say what it waits for",
    )
    figures = {"progress": {"phase": "Starting", "step": 3, "heldoutScore": 0.5}}
    patch = json.dumps({"status": figures})
    operator.kubectl("patch", "rlrun", "shown", "--subresource=status", "--type=merge", "-p", patch)
    score = f'rltrain_run_heldout_score{{{labels},run="shown"}}'
    operator.until(lambda: operator.metrics().get(score) == 0.5, "the metrics show its figures")
    assert operator.metrics()[f'rltrain_run_step{{{labels},run="shown"}}'] == 3
    operator.kubectl("delete", "rlrun", "shown", "--wait=false")
    operator.until(lambda: score not in operator.metrics(), "the metrics forget it")


def test_a_second_look_writes_nothing(operator: Operator) -> None:
    operator.apply("again-a", "again-b")
    operator.starting("again-a")
    operator.starting("again-b")
    operator.taken_up()
    look_again(operator)  # what was still under way is done now
    versions, writes = operator.versions(), operator.writes
    look_again(operator)
    look_again(operator)
    assert operator.versions() == versions
    assert operator.writes == writes


def test_what_others_change_is_put_right(operator: Operator) -> None:
    operator.apply("changed")
    before = operator.starting("changed")
    status = json.dumps({"status": {"phase": "Succeeded", "attempts": []}})
    operator.kubectl("patch", "rlrun", "changed", "--subresource=status", "--type=merge", "-p", status)
    budget = json.dumps({"spec": {"minAvailable": 0}})
    operator.kubectl("patch", "pdb", "changed", "--type=merge", "-p", budget)
    operator.kubectl("delete", "networkpolicy", "changed")

    def right() -> bool:
        found = operator.of("changed")
        if "NetworkPolicy" not in found:
            return False
        status = found["RLTrainingRun"][0]["status"]
        return (
            status["phase"] == "Starting"
            and [one["number"] for one in status["attempts"]] == [1]
            and found["PodDisruptionBudget"][0]["spec"]["minAvailable"] == 2
        )

    operator.until(right, "all is as it was")
    after = operator.of("changed")
    assert after["RayJob"] == before["RayJob"]
    assert after["NetworkPolicy"][0]["spec"] == before["NetworkPolicy"][0]["spec"]


def test_killed_in_the_middle_it_creates_nothing_twice(operator: Operator) -> None:
    names = [f"many-{number}" for number in range(8)]
    operator.apply(*names)
    operator.until(
        lambda: any(one["metadata"]["name"].startswith("many") for one in operator.get("rayjobs")), "one"
    )
    operator.kill()
    operator.start()
    jobs: dict[str, str] = {}
    for name in names:
        operator.until(
            lambda name=name: operator.status(name).get("phase") == "Starting", f"run {name} starts"
        )
        found = operator.of(name)
        assert [len(found[kind]) for kind in ("RayJob", "ConfigMap", "Secret")] == [1, 1, 1], name
        assert [one["rayJob"] for one in found["RLTrainingRun"][0]["status"]["attempts"]] == [f"{name}-1"]
        said = [one["message"] for one in found["Event"] if one["reason"] == "AttemptStarted"]
        assert said == [f"attempt 1 begins at step 0 as {name}-1"], "said once, also by who comes after"
        jobs[name] = found["RayJob"][0]["metadata"]["uid"]
    operator.taken_up()
    look_again(operator)
    versions = operator.versions()
    operator.kill()
    operator.start()
    operator.until(lambda: operator.looks >= len(operator.get("rlruns")), "all runs are looked at")
    look_again(operator)
    assert operator.versions() == versions
    assert operator.writes == 0


def test_the_api_server_goes_and_returns(operator: Operator, kube: KubeApi) -> None:
    operator.apply("stays", "loses")
    operator.starting("stays")
    operator.starting("loses")  # what is taken from it below is there
    process = operator.process
    kube.stop_apiserver()
    kube.start_apiserver()
    operator.apply("new")
    operator.starting("new")
    # What happens between two watches is told by none of them.
    operator.signal(signal.SIGSTOP)
    try:
        kube.stop_apiserver()
        kube.start_apiserver()
        operator.kubectl("delete", "networkpolicy", "loses")
        operator.kubectl("delete", "rayjob", "stays-1")
        operator.apply("meanwhile")
    finally:
        operator.signal(signal.SIGCONT)
    operator.starting("meanwhile")
    operator.until(lambda: operator.of("loses", "networkpolicies"), "the policy is back")
    operator.until(lambda: operator.status("stays")["attempts"][0].get("endTime"), "the loss is seen")
    assert operator.process is process
    assert operator.alive


def test_foreign_and_broken_objects(operator: Operator) -> None:
    labels = {"app.kubernetes.io/managed-by": "rltrain-operator", "app.kubernetes.io/name": "rltrain"}
    odd = labels | {"rltrain.dev/run": "taken", "rltrain.dev/attempt": "many", "rltrain.dev/role": "cook"}
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"entrypoint": "true"}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"run.yaml": "mine"}}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "none"}]}}
    foreign = [
        job | {"metadata": {"name": "taken-7", "labels": odd}},
        job | {"metadata": {"name": "nobody", "labels": labels | {"rltrain.dev/run": "no-such-run"}}},
        job | {"metadata": {"name": "without-labels"}},
        config | {"metadata": {"name": "taken-1"}},
        policy | {"metadata": {"name": "of-somebody", "labels": odd}},
        pod | {"metadata": {"name": "odd", "labels": odd}},
        pod | {"metadata": {"name": "nobodys", "labels": labels | {"rltrain.dev/attempt": "0x1"}}},
    ]
    operator.kube.apply(*foreign, namespace=operator.namespace)
    kinds = "rayjobs,configmaps,networkpolicies,pods"
    names = [one["metadata"]["name"] for one in foreign]
    before = [item for item in operator.get(kinds) if item["metadata"]["name"] in names]
    assert len(before) == len(foreign)
    operator.apply("taken")

    def sentence() -> str | None:
        conditions = operator.status("taken").get("conditions", ())
        return next((one["message"] for one in conditions if one["reason"] == "ObjectRefused"), None)

    assert "the run needs the name taken-1 for a ConfigMap" in operator.until(sentence, "the status says why")
    operator.apply("after")
    operator.starting("after")
    assert [item for item in operator.get(kinds) if item["metadata"]["name"] in names] == before
    assert operator.alive
    for item in before:
        operator.kubectl("delete", item["kind"], item["metadata"]["name"], "--wait=false")
    operator.starting("taken")


@pytest.mark.parametrize("stage", ["waits for the lease", "reads the cluster", "works"])
def test_a_signal_ends_it_at_any_time(kube: KubeApi, tmp_path: Path, stage: str) -> None:
    namespace = kube.new_namespace("ends")
    options = [f"--namespace={namespace}", f"--operator-namespace={namespace}", "--log-level=debug"]
    operator = OperatorProcess(kube.kubeconfig, tmp_path / "operator.log", "--leader-elect", *options)
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "rltrain-operator"},
    }
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 3600}
    if stage == "waits for the lease":
        kube.apply(lease | {"spec": spec}, namespace=namespace)
    asked = {"waits for the lease": ("get", "Lease"), "reads the cluster": ("list", "RLTrainingRun")}
    try:
        for _ in range(TRIES):
            operator.start()
            if stage == "works":
                operator.until_works()
            else:
                operator.until(lambda: operator.calls().get(asked[stage]), stage)
            operator.signal(signal.SIGTERM)
            assert operator.process is not None
            assert operator.process.wait(120) == 0
            if NOT_GIVEN_UP not in operator.said:
                break
    finally:
        operator.kill()
    assert "Traceback" not in operator.log.read_text()
    holder = kube.get("lease", "rltrain-operator", "-n", namespace)["spec"].get("holderIdentity") or ""
    assert holder == ("somebody" if stage == "waits for the lease" else ""), "the next one need not wait"


def test_kuberay_comes_and_goes_and_a_signal_in_between_is_heard(
    kube: KubeApi, place: Operator, tmp_path: Path
) -> None:
    place.kill()  # of its own only the profile is needed
    operator = Operator(kube, kube.new_namespace("kuberay"), tmp_path)
    definitions = [file for file in kuberay_definitions() if "rayjobs" in file.name]
    assert definitions
    try:
        kube.kubectl("delete", "crd", "rayjobs.ray.io")
        operator.start()
        operator.apply("early")

        def waiting() -> bool:
            return "KubeRay" in json.dumps(operator.status("early").get("conditions", ""))

        operator.until(waiting, "the status says what is missing")
        kube.install_definitions(*definitions)
        operator.until(lambda: operator.status("early").get("phase") == "Starting", "it begins")
        kube.kubectl("delete", "crd", "rayjobs.ray.io")
        operator.signal(signal.SIGTERM)
        assert operator.process is not None
        assert operator.process.wait(120) == 0
    finally:
        operator.kill()
        kube.install_definitions(*definitions)
    assert "Traceback" not in operator.log.read_text()
