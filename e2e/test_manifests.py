"""The installation without helm. Meanwhile there is no operator for a while, so that nothing else runs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import OPERATOR_IMAGE, SYSTEM, TRAINER_IMAGE, VERSION, Train, install_operator
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import REPOSITORY

from rl_api.documents import load_documents


@pytest.fixture
def manifests(cluster: Cluster) -> Iterator[None]:
    """The operator installed from manifests/ in place of the chart; afterwards the chart's again."""
    done = cluster.helm(SYSTEM, "uninstall", "rltrain", "--ignore-not-found", "--wait", "--timeout", "360s")
    assert done.returncode == 0, done.stderr
    cluster.kubectl("delete", "rltrainingprofile", "default", "--ignore-not-found")
    text = (REPOSITORY / "manifests" / "rltrain.yaml").read_text()
    text = text.replace(f"rltrain-operator:{VERSION}", OPERATOR_IMAGE)
    text = text.replace(f"rltrain-trainer:{VERSION}-cpu", TRAINER_IMAGE)
    cluster.kubectl("apply", "-f", "-", stdin=text)
    yield
    # Without the definitions, which the runs of other scenarios need.
    keep = ("Namespace", "CustomResourceDefinition")
    documents: list[dict[str, Any]] = [each for _, each in load_documents(text, "manifests/rltrain.yaml")]
    for document in documents:
        if document["kind"] not in keep:
            scope = ["-n", SYSTEM] if "namespace" in document["metadata"] else []
            name = document["metadata"]["name"]
            cluster.kubectl("delete", document["kind"], name, *scope, "--ignore-not-found")
    install_operator(cluster)


@pytest.mark.alone
def test_installed_by_kubectl_from_the_manifests(cluster: Cluster, manifests: None, train: Train) -> None:
    cluster.kubectl("rollout", "status", "deployment/rltrain", "-n", SYSTEM, "--timeout=360s", timeout=400)
    wait_for("the Job makes the default profile", lambda: cluster.get("rltrainingprofile", "default"), 120)
    run = train("plain", {"profile": None})
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    assert run.step == 20
