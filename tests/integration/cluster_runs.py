"""A run in a namespace of the shared kube-apiserver, for tests of the commands that work on it.

conftest.py makes the fixtures known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kube import KubeApi

DEADLINE = 90.0
RUN = """\
apiVersion: rltrain.dev/v1alpha1
kind: RLTrainingRun
metadata: {name: arithmetic}
spec:
  model: {source: tiny}
  task: {environment: reasoning-gym, name: chain_sum}
  sampler: {replicas: 2}
  checkpoint: {storage: {persistentVolumeClaim: checkpoints}}
  stop: {maxSteps: 50, targetReward: 0.9}
"""


@pytest.fixture
def kubeconfig(kube: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))


@pytest.fixture
def namespace(kube: KubeApi) -> str:
    return kube.new_namespace("cli")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


@pytest.fixture
def run(kube: KubeApi, namespace: str, file: Path) -> str:
    """Namespace of a run `arithmetic`."""
    kube.kubectl("apply", "-n", namespace, "-f", str(file))
    return namespace


def set_status(kube: KubeApi, namespace: str, **status: Any) -> None:
    change = json.dumps({"status": status})
    kube.kubectl(
        "patch", "rlrun", "arithmetic", "-n", namespace, "--subresource=status", "--type=merge", "-p", change
    )


def condition(kind: str, status: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": kind, "message": message}


def run_of(kube: KubeApi, namespace: str) -> dict[str, Any]:
    return kube.get("rlrun", "arithmetic", "-n", namespace)


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("rltrain: ")
    assert error.count("\n") == 1
    return error.removeprefix("rltrain: ").rstrip("\n")
