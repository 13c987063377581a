"""The cluster commands against a real kube-apiserver. No operator runs there: tests write status as one would."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_runs import DEADLINE, RUN, condition, error_of, run_of, set_status
from kube import KubeApi

from rl_cli.main import main

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("kubeconfig")


def test_apply_creates_and_says_what_is_next(
    kube: KubeApi, namespace: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", str(file), "-n", namespace, "--set", "stop.maxSteps=7"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"RLTrainingRun arithmetic created in namespace {namespace}",
        f"next: rltrain watch arithmetic -n {namespace}",
    ]
    stored = run_of(kube, namespace)
    assert stored["spec"]["stop"]["maxSteps"] == 7
    owners = {field["manager"]: field["operation"] for field in stored["metadata"].get("managedFields", [])}
    assert not owners or owners == {"rltrain": "Apply"}


def test_apply_owns_only_what_the_file_says(kube: KubeApi, namespace: str, file: Path) -> None:
    assert main(["apply", str(file), "-n", namespace]) == 0
    kube.kubectl("scale", "rlrun/arithmetic", "-n", namespace, "--replicas=2")
    stored = kube.get("rlrun", "arithmetic", "-n", namespace, "--show-managed-fields")
    entry = next(one for one in stored["metadata"]["managedFields"] if one["manager"] == "rltrain")
    assert set(entry["fieldsV1"]["f:spec"]) == {
        "f:model",
        "f:task",
        "f:sampler",
        "f:checkpoint",
        "f:stop",
    }


def test_apply_changes_what_may_change_and_says_what_may_not(
    kube: KubeApi, namespace: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", str(file), "-n", namespace]) == 0
    assert main(["apply", str(file), "-n", namespace, "--set", "sampler.replicas=3"]) == 0
    assert f"RLTrainingRun arithmetic configured in namespace {namespace}" in capsys.readouterr().out
    assert run_of(kube, namespace)["spec"]["sampler"]["replicas"] == 3
    assert main(["apply", str(file), "-n", namespace, "--set", "seed=2"]) == 1
    error = error_of(capsys)
    assert error.startswith("spec")
    assert "seed" in error


def test_apply_leaves_a_suspended_run_suspended(kube: KubeApi, namespace: str, file: Path) -> None:
    assert main(["apply", str(file), "-n", namespace]) == 0
    assert main(["suspend", "arithmetic", "-n", namespace]) == 0
    assert main(["apply", str(file), "-n", namespace, "--set", "stop.maxSteps=60"]) == 0
    spec = run_of(kube, namespace)["spec"]
    assert spec["suspend"] is True
    assert spec["stop"]["maxSteps"] == 60


def test_apply_names_who_has_set_a_field(
    kube: KubeApi, namespace: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", str(file), "-n", namespace]) == 0
    change = json.dumps({"spec": {"sampler": {"replicas": 5}}})
    kube.kubectl("patch", "rlrun", "arithmetic", "-n", namespace, "--type=merge", "-p", change)
    capsys.readouterr()
    assert main(["apply", str(file), "-n", namespace]) == 1
    assert error_of(capsys) == (
        "others have set these fields since: spec.sampler.replicas (by kubectl-patch); --force takes them over"
    )
    assert main(["apply", str(file), "-n", namespace, "--force"]) == 0
    assert run_of(kube, namespace)["spec"]["sampler"]["replicas"] == 2


def test_apply_checks_with_the_profiles_of_the_cluster(
    kube: KubeApi, namespace: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": "cli-small"},
        "spec": {"pools": [{"name": "cpu"}], "limits": {"maxSamplers": 1}},
    }
    kube.apply(profile)
    try:
        assert main(["apply", str(file), "-n", namespace, "--set", "profile=cli-small"]) == 2
        assert error_of(capsys) == (
            f"{file}: spec.sampler.replicas: found 2, allowed: at most 1, the limit of profile cli-small. "
            "Ask the platform team for more."
        )
        assert main(["apply", str(file), "-n", namespace, "--set", "profile=large"]) == 2
        assert "there is no such RLTrainingProfile" in error_of(capsys)
        assert kube.get("rlruns", "-n", namespace)["items"] == []
    finally:
        kube.kubectl("delete", "rlprofile", "cli-small")


def test_apply_takes_profiles_too(kube: KubeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load((ROOT / "examples" / "profile-cpu.yaml").read_text())
    document["metadata"]["name"] = "cli-cpu"
    file = tmp_path / "profile.yaml"
    file.write_text(yaml.safe_dump(document))
    try:
        assert main(["apply", str(file)]) == 0
        assert capsys.readouterr().out == "RLTrainingProfile cli-cpu created\n"
    finally:
        kube.kubectl("delete", "rlprofile", "cli-cpu", check=False)


def test_apply_takes_the_claim_of_the_quickstart(
    kube: KubeApi, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quickstart = str(ROOT / "examples" / "quickstart-cluster.yaml")
    assert main(["apply", quickstart, "-n", namespace, "--set", "seed=3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"PersistentVolumeClaim quickstart-checkpoints created in namespace {namespace}",
        f"RLTrainingRun quickstart-cluster created in namespace {namespace}",
        f"next: rltrain watch quickstart-cluster -n {namespace}",
    ]
    assert kube.get("pvc", "-n", namespace)["items"][0]["metadata"]["name"] == "quickstart-checkpoints"


def test_apply_of_a_kind_that_nobody_knows(
    namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(f"{RUN}---\napiVersion: example.com/v1\nkind: Thing\nmetadata: {{name: x}}\n")
    assert main(["apply", str(file), "-n", namespace]) == 1
    assert error_of(capsys) == "the cluster knows no Thing of example.com/v1"


def test_apply_to_no_namespace(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", str(file), "-n", "nowhere"]) == 1
    assert error_of(capsys) == "there is no namespace nowhere"


# --- suspend, resume, cancel -----------------------------------------------------------------------------------------


def test_suspend_and_resume(kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suspend", "arithmetic", "-n", run]) == 0
    assert run_of(kube, run)["spec"]["suspend"] is True
    assert f"next: rltrain resume arithmetic -n {run}" in capsys.readouterr().out
    assert main(["suspend", "arithmetic", "-n", run]) == 0
    assert capsys.readouterr().out == "run arithmetic is suspended already\n"
    set_status(kube, run, checkpoint={"step": 20, "uri": "/var/lib/rltrain/run/checkpoints/20"})
    assert main(["resume", "arithmetic", "-n", run]) == 0
    assert run_of(kube, run)["spec"]["suspend"] is False
    assert capsys.readouterr().out.startswith("run arithmetic goes on from step 20\n")


def test_a_run_that_is_over_is_not_suspended(
    kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_status(kube, run, phase="Succeeded", conditions=[condition("Succeeded", "True")])
    assert main(["suspend", "arithmetic", "-n", run]) == 1
    assert error_of(capsys) == "run arithmetic is over (Succeeded): there is nothing to suspend"
    assert run_of(kube, run)["spec"]["suspend"] is False


def test_cancel_asks_first(kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cancel", "arithmetic", "-n", run]) == 2
    assert error_of(capsys) == "--yes: missing, required where nobody can be asked"
    assert run_of(kube, run)["metadata"].get("deletionTimestamp") is None


def test_cancel_on_a_terminal(kube: KubeApi, run: str) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "rl_cli.main", "cancel", "arithmetic", "-n", run]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, text=True) as process:
        os.write(master, b"n\n")
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert output == f"Delete run arithmetic in namespace {run} (Pending)? [y/N] nothing was done\n"
    assert run_of(kube, run)["metadata"].get("deletionTimestamp") is None
    os.close(slave)
    os.close(master)


def test_cancel_waits_for_the_last_checkpoint(
    kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    finalizer = json.dumps({"metadata": {"finalizers": ["rltrain.dev/checkpoint"]}})
    kube.kubectl("patch", "rlrun", "arithmetic", "-n", run, "--type=merge", "-p", finalizer)
    assert main(["cancel", "arithmetic", "-n", run, "--yes", "--timeout", "1"]) == 1
    error = capsys.readouterr().err
    assert "run arithmetic is still there after 1 s, as its operator has not let it go" in error
    set_status(kube, run, checkpoint={"step": 20, "uri": "/var/lib/rltrain/run/checkpoints/20"})
    command = [sys.executable, "-m", "rl_cli.main", "cancel", "arithmetic", "-n", run, "--yes"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        # Not before it has found the run: it would say that there is none.
        assert process.stderr.readline() == "waiting for the last checkpoint of run arithmetic\n"
        none = json.dumps({"metadata": {"finalizers": None}})
        kube.kubectl("patch", "rlrun", "arithmetic", "-n", run, "--type=merge", "-p", none)
        out, error = process.communicate(timeout=DEADLINE)
    assert (process.returncode, error) == (0, "")
    assert out == "run arithmetic is deleted; its checkpoints stay at /var/lib/rltrain/run/checkpoints/20\n"
    assert kube.get("rlruns", "-n", run)["items"] == []


# --- logs and report --------------------------------------------------------------------------------------------------


def test_logs_of_a_run_without_pods(kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_status(kube, run, phase="Pending", conditions=[condition("Accepted", "False", "no such pool")])
    assert main(["logs", "arithmetic", "-n", run]) == 1
    assert error_of(capsys) == "run arithmetic (Pending) has no head pod: no such pool"


def test_logs_where_the_pod_is_on_no_node(
    kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "arithmetic-1-head",
            "labels": {
                "rltrain.dev/run": "arithmetic",
                "rltrain.dev/attempt": "1",
                "rltrain.dev/role": "head",
            },
        },
        "spec": {"containers": [{"name": "ray", "image": "none"}]},
    }
    kube.apply(pod, namespace=run)
    assert main(["logs", "arithmetic", "-n", run]) == 1
    assert error_of(capsys).startswith("arithmetic-1-head of run arithmetic is not running")
    assert main(["logs", "arithmetic", "-n", run, "--role", "head"]) == 1
    assert error_of(capsys) == "arithmetic-1-head of run arithmetic has written nothing yet"
    change = json.dumps({"status": {"phase": "Running"}})
    kube.kubectl("patch", "pod", "arithmetic-1-head", "-n", run, "--subresource=status", "-p", change)
    assert main(["logs", "arithmetic", "-n", run]) == 1
    assert "pod arithmetic-1-head does not have a host assigned" in error_of(capsys)
    assert main(["report", "arithmetic", "-n", run]) == 1
    assert "pod arithmetic-1-head does not have a host assigned" in error_of(capsys)


def test_report_says_where_the_page_is(kube: KubeApi, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_status(kube, run, phase="Succeeded", attempts=[{"number": 1}])
    uid = run_of(kube, run)["metadata"]["uid"]
    assert main(["report", "arithmetic", "-n", run]) == 1
    assert error_of(capsys) == (
        f"run arithmetic (Succeeded) has no head pod: its run folder is on PersistentVolumeClaim checkpoints in "
        f"namespace {run}, as arithmetic-{uid[:8]}/run; docs/cluster.md shows how to copy it from there, and "
        "rltrain report FOLDER makes the report"
    )


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["watch", "logs", "report", "suspend", "resume", "cancel"])
def test_no_such_run(namespace: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "nothing", "-n", namespace]) == 1
    assert error_of(capsys) == f"there is no run nothing in namespace {namespace}"


def somebody(kube: KubeApi, folder: Path, **change: Any) -> Path:
    """A kubeconfig that differs from the administrator's."""
    document = yaml.safe_load(kube.kubeconfig.read_text())
    document["users"][0]["user"] |= change.get("user", {})
    document["clusters"][0]["cluster"] |= change.get("cluster", {})
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def test_forbidden(
    kube: KubeApi, namespace: str, tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.kubectl("create", "serviceaccount", "nobody", "-n", namespace)
    token = kube.kubectl("create", "token", "nobody", "-n", namespace).stdout.strip()
    config = somebody(kube, tmp_path, user={"token": token})
    for arguments in (["watch", "arithmetic"], ["apply", str(file)]):
        assert main([*arguments, "-n", namespace, "--kubeconfig", str(config)]) == 1
        error = error_of(capsys)
        assert error.startswith("not allowed: ")
        assert 'resource "rltrainingruns"' in error


def test_wrong_token(
    kube: KubeApi, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = somebody(kube, tmp_path, user={"token": "wrong"})
    assert main(["watch", "arithmetic", "-n", namespace, "--kubeconfig", str(config)]) == 1
    assert error_of(capsys) == "the cluster does not accept your credentials: log in to it again"


def test_nobody_answers(kube: KubeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = somebody(kube, tmp_path, cluster={"server": "https://127.0.0.1:9"})
    assert main(["watch", "--kubeconfig", str(config)]) == 1
    assert error_of(capsys) == "no connection to the API server https://127.0.0.1:9: Connection refused"


def test_another_certificate(kube: KubeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(kube.kubeconfig.read_text())
    del document["clusters"][0]["cluster"]["certificate-authority"]
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(document))
    assert main(["watch", "--kubeconfig", str(config)]) == 1
    assert error_of(capsys).startswith(f"the certificate of the API server {kube.server} is not the one")


def test_a_cluster_without_the_chart(kube: KubeApi, capsys: pytest.CaptureFixture[str], file: Path) -> None:
    # Served again when the definition is back: other tests of this session need it.
    definition = kube.get("crd", "rltrainingruns.rltrain.dev")
    kube.kubectl("delete", "crd", "rltrainingruns.rltrain.dev")
    try:
        # The API server answers for a moment after the definition is gone.
        raw, gone = "/apis/rltrain.dev/v1alpha1/rltrainingruns", time.monotonic() + DEADLINE
        while kube.kubectl("get", "--raw", raw, check=False).returncode == 0 and time.monotonic() < gone:
            time.sleep(0.4)
        for arguments in (["watch"], ["watch", "arithmetic"], ["apply", str(file)]):
            deadline = time.monotonic() + DEADLINE
            while (status := main(arguments)) == 0 and time.monotonic() < deadline:
                time.sleep(0.4)
            assert status == 1
            assert error_of(capsys).startswith(
                "this cluster does not know RLTrainingRun: install the chart first"
            )
    finally:
        for key in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            definition["metadata"].pop(key, None)
        kube.apply(definition | {"status": None})
        kube.wait_for_definitions("crd/rltrainingruns.rltrain.dev")
