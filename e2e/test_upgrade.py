"""From an earlier chart and operator to these, while a run trains: it trains on, and everything works with it."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import Train, install_operator
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS, REPOSITORY

# 0.1.0, the first release whose stored objects are kept in tests/upgrade/objects.
EARLIER = "0cf486a"


@pytest.fixture
def earlier_operator(cluster: Cluster) -> Iterator[None]:
    """The operator of the earlier version instead of today's, with its definitions; today's again in the end."""
    if "E2E_CONTEXT" in os.environ:
        pytest.skip("the earlier operator is built for the cluster of scripts/e2e only")
    command = [str(REPOSITORY / "e2e" / "cluster" / "earlier"), EARLIER]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
    folder = Path(built.stdout.strip())
    version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    with ExitStack() as stack:
        stack.callback(install_operator, cluster)
        image = f"earlier/rltrain-operator:{version}"
        install_operator(cluster, chart=folder / "charts" / "rltrain", image=image)
        yield


def uids(cluster: Cluster, namespace: str) -> dict[str, str]:
    """What must not be made anew, by kind and name."""
    found = cluster.list("rayjobs,rayclusters,configmaps,secrets,pods", namespace, "rltrain.dev/run=before")
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"] for one in found}


def kuberay_let_in(namespace: str) -> dict[str, Any]:
    """What the earlier release needs where policies bite: it lets KubeRay in by the labels of its chart alone."""
    kuberay = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-system"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "kuberay", "namespace": namespace},
        "spec": {"podSelector": {}, "ingress": [{"from": [kuberay], "ports": [{"port": 8265}]}]},
    }


@pytest.mark.alone  # all runs of the cluster have the same operator
@pytest.mark.long
def test_upgrade_from_an_earlier_release_does_not_disturb_a_run(
    cluster: Cluster, earlier_operator: None, train: Train
) -> None:
    run = train(
        "before", ENDLESS | {"learner": {"resources": None}}
    )  # a field that the earlier release has not
    cluster.apply(kuberay_let_in(run.namespace))
    step = run.wait_for_step(3, START_SECONDS)
    attempt: dict[str, Any] = run.status["attempts"][0]
    assert "image" not in attempt, "begun by the earlier operator"
    before = uids(cluster, run.namespace)
    assert any(name.startswith("RayJob/") for name in before)
    assert len(run.pods()) == 3

    # Its driver has a token that this operator did not derive, and may read only for the time of an upgrade.
    install_operator(cluster)
    wait_for(
        "its status says so",
        lambda: run.condition("Training").get("reason") == "DriverNotAsked",
        90,
        run.describe,
    )
    assert uids(cluster, run.namespace) == before, "something of the run was made anew"
    install_operator(cluster, "rbac.legacySecrets=true")
    run.wait_for_step(max(step, run.step) + 5, 120)
    assert uids(cluster, run.namespace) == before, "something of the run was made anew"
    [known] = run.status["attempts"]
    later = {"preemptions": 0, "heldSeconds": 0, "trainedTime": known["trainedTime"]}
    assert known == attempt | later, "more is told, and nothing else"
    run.wait_for_condition("Training", 60)

    # What the earlier operator has begun, this one ends: with a checkpoint, and without a step lost or done twice.
    run.patch({"suspend": True})
    run.wait_for_condition("Suspended", 180)
    wait_for("its pods are gone", lambda: not run.pods(), 90, run.describe)
    kept = run.status["checkpoint"]["step"]
    assert kept > step
    run.wind_up(kept + 5)
    run.patch({"suspend": False})
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    first, second = run.status["attempts"]
    assert (second["fromStep"], run.step) == (kept, kept + 5)
    assert "image" not in first
    assert "image" in second
