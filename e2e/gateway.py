"""A Gateway for services whose traffic moves in steps: the cluster's own, or the fixture in cluster/gateway."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cluster_client import ASKED, RESTRICTED_CONTAINER, RESTRICTED_POD, Cluster, wait_for
from training_run import REPOSITORY

NAMESPACE = "e2e-gateway"
FIXTURE = "rltrain-e2e"
_GROUP = "gateway.networking.k8s.io"
_RULES = [
    {"apiGroups": [_GROUP], "resources": ["gateways", "httproutes"], "verbs": ["list"]},
    {"apiGroups": [_GROUP], "resources": ["gateways/status", "httproutes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]},
]


@contextmanager
def gateways(cluster: Cluster, image: str) -> Iterator[str]:
    """Name of a GatewayClass that is carried out: E2E_GATEWAY_CLASS, or the fixture's."""
    if own := os.environ.get("E2E_GATEWAY_CLASS"):
        yield own
        return
    labels, where = {"app.kubernetes.io/name": "gateway"}, {"name": "gateway", "namespace": NAMESPACE}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": NAMESPACE}}
    account = {"kind": "ServiceAccount", **where}
    pod = {
        "serviceAccountName": "gateway",
        "securityContext": RESTRICTED_POD,
        "containers": [
            {
                "name": "haproxy",
                "image": image,
                "args": [FIXTURE, f"gateway.{NAMESPACE}.svc"],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                "resources": ASKED,
                "securityContext": RESTRICTED_CONTAINER,
            }
        ],
    }
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAMESPACE}
    template = {"metadata": {"labels": labels}, "spec": pod}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where},
        {**role, "kind": "ClusterRole", "rules": _RULES},
        {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [account]},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": where, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": where, "spec": service},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "GatewayClass",
            "metadata": {"name": FIXTURE},
            "spec": {"controllerName": "rltrain.dev/e2e-gateway"},
        },
    )

    def runs() -> bool:
        found = cluster.get("deployment", "gateway", NAMESPACE) or {}
        return bool((found.get("status") or {}).get("readyReplicas"))

    try:
        wait_for(
            "the Gateway's fixture runs", runs, 60, lambda: cluster.logs("deployment/gateway", NAMESPACE)
        )
        yield FIXTURE
    except BaseException:
        cluster.save(REPOSITORY / "e2e" / "artifacts" / NAMESPACE, [NAMESPACE])
        raise
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        for kind in ("clusterrole", "clusterrolebinding"):
            cluster.kubectl("delete", kind, NAMESPACE)
        cluster.kubectl("delete", "gatewayclass", FIXTURE)
