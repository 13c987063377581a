"""Fixtures of the end-to-end scenarios: a cluster, the operator installed by helm, and a namespace per scenario.

`scripts/e2e` prepares the cluster and the images and runs them; KUBECONFIG names the cluster.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from training_run import CLAIM, REPOSITORY, TrainingRun, run_document

ARTIFACTS = REPOSITORY / "e2e" / "artifacts"
SYSTEM = "rltrain-system"
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
TRAINER_IMAGE = os.environ.get("E2E_TRAINER_IMAGE", f"rltrain-trainer:{VERSION}-cpu")
OPERATOR_IMAGE = os.environ.get("E2E_OPERATOR_IMAGE", f"rltrain-operator:{VERSION}")
PROFILE = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingProfile",
    "metadata": {"name": "e2e"},
    "spec": {
        "pools": [
            {"name": "cpu"},
            {"name": "gpu", "acceleratorResource": "nvidia.com/gpu", "acceleratorsPerNode": 8},
        ],
        "images": {"cpu": TRAINER_IMAGE, "gpu": TRAINER_IMAGE},
    },
}
_numbers = itertools.count(1)
_times: list[tuple[str, str, float]] = []


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster of the current context, with KubeRay."""
    found = Cluster()
    served = found.kubectl("get", "crd", "rayjobs.ray.io", check=False)
    if served.returncode:
        pytest.exit(
            f"no cluster with KubeRay in the current kube context: {served.stderr.strip()}; scripts/cluster up makes one",
            2,
        )
    return found


def install_operator(cluster: Cluster, *values: str) -> None:
    """Install or upgrade the chart with helm, as a platform engineer does it; `values` are helm's `name=value`."""
    repository, _, tag = OPERATOR_IMAGE.rpartition(":")
    # The image may have changed below an unchanged tag, so that pods are made anew each time.
    installed = f"podAnnotations.rltrain\\.dev/installed={time.time():.0f}"
    command = ["helm", "upgrade", "--install", "rltrain", str(REPOSITORY / "charts" / "rltrain")]
    command += ["-n", SYSTEM, "--create-namespace", "--wait", "--timeout", "120s"]
    for value in (f"image.repository={repository}", f"image.tag={tag}", *values):
        command += ["--set", value]
    command += ["--set-string", installed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        # A broken installation is seen in the log of the pod, which helm does not show.
        cluster.save(ARTIFACTS / "operator", [SYSTEM])
        raise AssertionError(
            f"helm could not install the operator: {done.stderr.strip()}; see e2e/artifacts/operator"
        )


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> None:
    """The operator, installed, and a profile of the scenarios."""
    try:
        install_operator(cluster)
    except AssertionError as error:
        pytest.exit(str(error), 1)
    cluster.apply(PROFILE)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the scenario's own, which takes pods of the restricted standard only; its state is kept on failure."""
    words = request.node.name.removeprefix("test_").replace("_", "-").split("[")[0]
    name = f"e2e-{words[:40].strip('-')}-{next(_numbers)}"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }
    )
    yield name
    report = request.node.stash.get(_REPORT, None)
    if report is not None and report.failed:
        cluster.save(ARTIFACTS / words, [name, SYSTEM])
        (ARTIFACTS / words / "failure.txt").write_text(report.longreprtext)
    cluster.kubectl("delete", "rltrainingruns", "--all", "-n", name, "--timeout=60s", check=False)
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    cluster.kubectl("delete", "pv", f"{name}-{CLAIM}", "--ignore-not-found", "--wait=false")


@pytest.fixture
def claim(cluster: Cluster, namespace: str) -> str:
    """A claim for checkpoints: of the default storage class, or on the node that scripts/cluster prepared."""
    request: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    prepared = cluster.list("nodes", selector="rltrain.dev/e2e-storage=true")
    if prepared:
        # One folder for all: each run has a folder of its own in it.
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace}-{CLAIM}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "claimRef": {"name": CLAIM, "namespace": namespace},
                "hostPath": {"path": "/var/lib/rltrain-e2e"},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "rltrain.dev/e2e-storage", "operator": "In", "values": ["true"]}
                                ]
                            }
                        ]
                    }
                },
            },
        }
        cluster.apply(volume)
        request |= {"storageClassName": "", "volumeName": f"{namespace}-{CLAIM}"}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": request,
        }
    )
    return CLAIM


@pytest.fixture
def train(cluster: Cluster, operator: None, namespace: str) -> Callable[..., TrainingRun]:
    """Applies a small run: `train("name", {"stop": {"maxSteps": 5}})`; the second argument is laid over its spec."""

    def apply(name: str, spec: dict[str, Any] | None = None) -> TrainingRun:
        document = run_document(name, namespace, {"profile": "e2e"} | (spec or {}))
        cluster.apply(document)
        run = TrainingRun(cluster, name, namespace)
        wait_for("the operator writes a status", lambda: run.status, 60, run.describe)
        return run

    return apply


_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call" or report.failed:
        item.stash[_REPORT] = report
    if report.when == "call" or report.outcome != "passed":
        _times.append((item.name.removeprefix("test_"), report.outcome, report.duration))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("scenarios")
    for name, outcome, seconds in _times:
        terminalreporter.write_line(f"{outcome:8}{seconds:7.0f} s  {name.replace('_', ' ')}")
    if any(outcome == "failed" for _, outcome, _ in _times):
        terminalreporter.write_line(f"logs, events and objects: {Path('e2e/artifacts')}")


def pytest_sessionstart() -> None:
    os.environ["PATH"] = f"{REPOSITORY / '.tools' / 'bin'}:{os.environ['PATH']}"
