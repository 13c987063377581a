"""The chart and the manifests on a real kube-apiserver: every object is taken, and the operator may do what it must."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from big_yaml import yaml_documents
from kube import KubeApi
from operator_inside import run
from operator_process import OperatorProcess

ROOT = Path(__file__).parents[2]
HELM = ROOT / ".tools" / "bin" / "helm"
MANIFESTS = ROOT / "manifests" / "rltrain.yaml"
ACCOUNT = "system:serviceaccount:rltrain-system:rltrain"


def helm(kube: KubeApi, *arguments: str) -> str:
    assert HELM.exists(), f"{HELM.relative_to(ROOT)} is missing: run make tools"
    command = [str(HELM), f"--kubeconfig={kube.kubeconfig}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(kube: KubeApi) -> Iterator[KubeApi]:
    """The API with manifests/rltrain.yaml applied client-side, as the page says."""
    kube.kubectl("apply", "-f", str(MANIFESTS))
    yield kube
    # Other tests look at the definitions alone.
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        kube.kubectl("delete", kind, "--all")


def test_applying_the_manifests_again_changes_nothing(installed: KubeApi) -> None:
    lines = installed.kubectl("apply", "-f", str(MANIFESTS)).stdout.splitlines()
    assert len(lines) == len(yaml_documents(MANIFESTS.read_text()))
    assert [line for line in lines if not line.endswith("unchanged")] == []


def test_pods_are_let_into_a_restricted_namespace(installed: KubeApi) -> None:
    templates = [
        one["spec"]["template"]
        for one in yaml_documents(MANIFESTS.read_text())
        if one["kind"] in ("Deployment", "Job")
    ]
    assert len(templates) == 2
    for template in templates:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
        arguments = ("create", "--dry-run=server", "-n", "rltrain-system", "-f", "-")
        assert installed.kubectl(*arguments, stdin=yaml.safe_dump(pod)).returncode == 0
        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        refused = installed.kubectl(*arguments, stdin=yaml.safe_dump(pod), check=False)
        assert 'violates PodSecurity "restricted' in refused.stderr


@pytest.mark.parametrize(
    ("verb", "what", "answer"),
    [
        ("patch", "rltrainingruns.rltrain.dev", "yes"),
        ("patch", "rltrainingruns.rltrain.dev/status", "yes"),
        ("update", "rltrainingruns.rltrain.dev/finalizers", "yes"),
        ("watch", "rltrainingprofiles.rltrain.dev", "yes"),
        ("create", "rayjobs.ray.io", "yes"),
        ("create", "secrets", "yes"),
        ("get", "secrets", "no"),
        ("patch", "secrets", "no"),
        ("delete", "secrets", "no"),
        ("get", "pods", "no"),
        ("create", "configmaps", "yes"),
        ("get", "pods/log", "yes"),
        ("create", "events", "yes"),
        ("list", "secrets", "no"),
        ("list", "configmaps", "no"),
        ("create", "pods", "no"),
        ("delete", "pods", "no"),
        ("create", "pods/exec", "no"),
        ("update", "rltrainingruns.rltrain.dev", "no"),
        ("delete", "rltrainingruns.rltrain.dev", "no"),
        ("patch", "rltrainingprofiles.rltrain.dev", "no"),
        ("list", "namespaces", "no"),
        ("get", "nodes", "no"),
        ("patch", "leases.coordination.k8s.io", "no"),
    ],
)
def test_what_the_operator_may_do_in_any_namespace(
    installed: KubeApi, verb: str, what: str, answer: str
) -> None:
    resource, slash, part = what.partition("/")
    more = [f"--subresource={part}"] if slash else []
    done = installed.kubectl(
        "auth", "can-i", verb, resource, *more, "-n", "default", f"--as={ACCOUNT}", check=False
    )
    assert done.stdout.split()[-1] == answer


@pytest.mark.parametrize(
    ("verb", "what", "answer"),
    [
        ("patch", "leases.coordination.k8s.io", "yes"),
        ("get", "secrets/rltrain-operator-key", "yes"),
        ("get", "secrets/of-somebody-else", "no"),
        ("delete", "secrets/rltrain-operator-key", "no"),
    ],
)
def test_lease_and_key_are_in_its_own_namespace(
    installed: KubeApi, verb: str, what: str, answer: str
) -> None:
    arguments = ("auth", "can-i", verb, what, "-n", "rltrain-system", f"--as={ACCOUNT}")
    assert installed.kubectl(*arguments, check=False).stdout.split()[-1] == answer


def test_the_default_profile_is_applied_and_a_change_by_hand_is_kept(
    installed: KubeApi, tmp_path: Path
) -> None:
    (config,) = (
        one
        for one in yaml_documents(MANIFESTS.read_text())
        if one["kind"] == "ConfigMap" and "default-profile" in one["metadata"]["name"]
    )
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text)
    (tmp_path / "token").write_text(installed.token)
    (tmp_path / "ca.crt").write_text(installed.certificate.read_text())

    def apply() -> str:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "apply_profile.py"), str(tmp_path / "profile.json")],
            env={
                "SERVICE_ACCOUNT_FOLDER": str(tmp_path),
                "KUBERNETES_URL": installed.server,
                "no_proxy": "*",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert apply() == "RLTrainingProfile default is made\n"
    assert apply() == "RLTrainingProfile default is up to date\n"
    change = {"spec": {"images": {"cpu": "mine:1"}}}
    installed.kubectl("patch", "rlprofile", "default", "--type=merge", "-p", json.dumps(change))
    assert "was changed by hand" in apply()
    assert installed.get("rlprofile", "default")["spec"]["images"]["cpu"] == "mine:1"
    installed.kubectl("delete", "rlprofile", "default")


def test_helm_installs_upgrades_and_uninstalls(kube: KubeApi) -> None:
    chart, namespace = str(ROOT / "charts" / "rltrain"), kube.new_namespace("helm")
    # The definitions are there already, and not by Helm.
    more = ("--namespace", namespace, "--set", "crds.install=false,grafana.dashboard.enabled=true")
    notes = helm(kube, "install", "ops", chart, *more)
    assert "-f examples/quickstart-cluster.yaml" in notes
    before = kube.get("deployment", "ops-rltrain", "-n", namespace)
    helm(kube, "upgrade", "ops", chart, *more, "--set", "replicas=2,log.level=debug")
    after = kube.get("deployment", "ops-rltrain", "-n", namespace)
    assert (before["spec"]["replicas"], after["spec"]["replicas"]) == (1, 2)
    assert kube.get("pdb", "ops-rltrain", "-n", namespace)["spec"]["maxUnavailable"] == 1
    helm(kube, "uninstall", "ops", "--namespace", namespace)
    assert kube.get("deployments,services,networkpolicies,pdb", "-n", namespace)["items"] == []
    assert kube.kubectl("get", "crd", "rltrainingruns.rltrain.dev", "-o", "name").stdout


@pytest.fixture
def operator(
    installed: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OperatorProcess]:
    """The operator at work with the rights of its account and no more."""
    token = installed.kubectl("create", "token", "rltrain", "-n", "rltrain-system").stdout.strip()
    config = yaml.safe_load(installed.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    deployment = next(one for one in yaml_documents(MANIFESTS.read_text()) if one["kind"] == "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    monkeypatch.setenv("POD_NAMESPACE", "rltrain-system")
    process = OperatorProcess(tmp_path / "kubeconfig", tmp_path / "log", *arguments)
    process.start()
    try:
        yield process
    finally:
        # How it stops on a signal is looked at elsewhere; here it must not outlive the test.
        process.kill()


def test_its_rights_are_enough_for_a_run_from_its_beginning_to_its_end(
    installed: KubeApi, operator: OperatorProcess
) -> None:
    namespace = installed.new_namespace("rights")
    installed.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples/quickstart-cluster.yaml"))

    def there(what: str) -> bool:
        return bool(installed.get(what, "-n", namespace)["items"])

    try:
        operator.until(lambda: there("rayjobs"), "it begins")
        for what in ("configmaps", "secrets", "networkpolicies", "pdb"):
            assert there(what), what

        def told() -> bool:
            status = installed.get("rlrun", "quickstart-cluster", "-n", namespace).get("status", {})
            return bool(status.get("phase"))

        operator.until(told, "the status comes after what it speaks of")
        installed.kubectl("delete", "rlrun", "quickstart-cluster", "-n", namespace, "--wait=false")
        operator.until(lambda: not there("rlrun"), "it goes")
        assert "forbidden" not in operator.log.read_text()
    finally:
        installed.kubectl("delete", "rlrun", "--all", "-n", namespace, "--wait=false")


def of_size(characters: int) -> str:
    """A run with an argument of so many characters."""
    document = run("sized", profile=None)
    document["spec"]["task"]["args"] = {"words": "a" * characters}
    return json.dumps(document)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.4)


def test_a_spec_larger_than_64_kib_is_refused_and_one_that_is_stored_may_go_on(installed: KubeApi) -> None:
    namespace = installed.new_namespace("size")

    def create(characters: int, *more: str) -> subprocess.CompletedProcess[str]:
        where = ("create", "-n", namespace, "-f", "-", *more)
        return installed.kubectl(*where, stdin=of_size(characters), check=False)

    def patched(change: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        where = ("patch", "rlrun", "sized", "-n", namespace, "--type=merge", "-p", json.dumps(change))
        return installed.kubectl(*where, check=False)

    until(lambda: "spec: found 71" in create(70_000, "--dry-run=server").stderr, "the policy is enforced")
    assert "spec: found 71" in (said := create(70_000).stderr), said
    assert "characters, allowed: at most 65536; what is larger belongs into a file or the image" in said
    assert create(60_000, "--dry-run=server").returncode == 0
    installed.kubectl("delete", "validatingadmissionpolicybinding", "rltrain-size")
    until(lambda: create(70_000, "--dry-run=server").returncode == 0, "the policy is not enforced")
    assert create(70_000).returncode == 0
    installed.kubectl("apply", "-f", str(MANIFESTS))
    until(lambda: "spec: found 71" in create(70_000, "--dry-run=server").stderr, "the policy is enforced")
    assert patched({"metadata": {"labels": {"team": "a"}}}).returncode == 0
    assert patched({"spec": {"stop": {"maxSteps": 7}}}).returncode == 0
    refused = patched({"spec": {"stop": {"maxSteps": 70_000_000}}})
    assert "spec: found 71" in refused.stderr
    installed.kubectl("delete", "rlrun", "sized", "-n", namespace)
