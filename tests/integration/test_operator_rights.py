"""The operator with the rights of the chart does all that it can do; an API server's audit log says which of them it used.

A server of its own, as the log is: whoever else works with one would be in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import played_kueue
import pytest
import yaml
from audited_cluster import ACCOUNT, Cluster
from kube import KubeApi, find_binaries, kuberay_definitions, our_definitions
from rights_used import (
    a_cluster_to_work_in,
    a_conflict,
    a_profile_of_other_namespaces,
    a_run_that_goes_on_with_more_samplers_and_is_suspended,
    a_run_that_waits_in_a_queue,
    a_run_whose_node_is_drained,
    a_run_whose_time_has_come,
    a_service,
    devices_that_are_claimed,
    names_that_are_taken,
)

ROOT = Path(__file__).parents[2]
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}
ADMISSION = {
    ("runs", "rltrain.dev", f"{kind}/finalizers", "", "update")
    for kind in ("rltrainingruns", "rlpolicyservices")
}
"""Not asked for in a request: an admission plug-in asks whether the operator might. Tried on its own."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    tmp_path = tmp_path_factory.mktemp("rights")
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(
            "no kube-apiserver here: scripts/tools apiserver builds it, or KUBEBUILDER_ASSETS names it"
        )
    if not played_kueue.DEFINITIONS.is_dir():
        pytest.skip("no definitions of Kueue here: scripts/tools kueue-crds gets them")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(POLICY))
    folder, log = tmp_path / "kube", tmp_path / "audit.log"
    folder.mkdir()
    kube = KubeApi(
        folder,
        binaries,
        f"--audit-policy-file={tmp_path / 'policy.yaml'}",
        f"--audit-log-path={log}",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    )
    made: Cluster | None = None
    try:
        kube.start()
        kube.install_definitions(*our_definitions(), *kuberay_definitions())
        played_kueue.install(kube)
        kube.kubectl("apply", "-f", str(ROOT / "manifests/rltrain.yaml"))
        made = Cluster(kube, log, tmp_path)
        made.operator.start()
        made.operator.until_works()
        yield made
    finally:
        if made is not None:
            made.operator.kill()
        kube.stop()


def test_no_verb_is_granted_that_is_not_used_and_none_is_used_that_is_not_granted(cluster: Cluster) -> None:
    names_that_are_taken(cluster)
    a_run_that_goes_on_with_more_samplers_and_is_suspended(cluster)
    a_run_whose_time_has_come(cluster)
    a_cluster_to_work_in(cluster)
    a_conflict(cluster)
    a_run_whose_node_is_drained(cluster)
    a_service(cluster)
    devices_that_are_claimed(cluster)
    a_run_that_waits_in_a_queue(cluster)
    cluster.operator.kill()
    cluster.operator.start()  # finds lease and key
    cluster.operator.until_works()

    a_profile_of_other_namespaces(cluster)
    refused = [event for event in cluster.events() if event["responseStatus"]["code"] in (401, 403)]
    assert [(event["verb"], event["requestURI"]) for event in refused] == []
    used, granted = cluster.used(), cluster.granted()
    assert used - granted == set(), "used, and not granted by a role of the chart"
    assert granted - used == ADMISSION, "granted, and used by nothing above"
    assert "Traceback" not in cluster.operator.log.read_text()


def test_owner_references_that_block_need_the_right_to_finalizers(cluster: Cluster) -> None:
    """Where that is checked, as here, a write of the operator is refused without it."""
    rules = cluster.kube.get("clusterrole", "rltrain-runs")["rules"]
    fewer = [rule for rule in rules if "rltrainingruns/finalizers" not in rule["resources"]]
    assert len(fewer) == len(rules) - 1
    kind, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "fewer"}
    subject = {"apiGroup": group, "kind": "User", "name": "fewer"}
    cluster.kube.apply(
        {"apiVersion": kind, "kind": "ClusterRole", "metadata": {"name": "fewer"}, "rules": fewer},
        {
            "apiVersion": kind,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "fewer"},
            "roleRef": reference,
            "subjects": [subject],
        },
    )
    cluster.train("owner")
    config = cluster.until(lambda: cluster.there("configmap", "owner-1"), "it begins")
    metadata = {"name": "copy", "ownerReferences": config["metadata"]["ownerReferences"]}
    copy = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    create = ("create", "--dry-run=server", "-n", cluster.namespace, "-f", "-")
    assert cluster.kube.kubectl(*create, f"--as={ACCOUNT}", stdin=copy).returncode == 0
    refused = cluster.kube.kubectl(*create, "--as=fewer", stdin=copy, check=False)
    assert "cannot set blockOwnerDeletion" in refused.stderr


def test_without_the_right_to_see_nodes_an_operator_works_and_says_so_once(cluster: Cluster) -> None:
    role = cluster.kube.get("clusterrole", "rltrain-cluster")
    fewer = [rule for rule in role["rules"] if "nodes" not in rule["resources"]]
    assert len(fewer) == len(role["rules"]) - 1

    def give(rules: list[dict[str, Any]], may: str) -> None:
        patch = json.dumps([{"op": "replace", "path": "/rules", "value": rules}])
        cluster.kube.kubectl("patch", "clusterrole", "rltrain-cluster", "--type=json", "-p", patch)
        asked = ("auth", "can-i", "list", "nodes", f"--as={ACCOUNT}")
        cluster.until(lambda: cluster.kube.kubectl(*asked, check=False).stdout.strip() == may, "it is known")

    try:
        give(fewer, "no")
        cluster.operator.kill()
        cluster.operator.start()
        cluster.operator.until_works()
        cluster.train("blind")
        cluster.until(lambda: cluster.there("rayjob", "blind-1"), "runs are kept going")
    finally:
        give(role["rules"], "yes")
    sentence = "runs are not moved away from nodes that are drained: "
    assert cluster.operator.said.count(sentence) == 1
