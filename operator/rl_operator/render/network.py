"""NetworkPolicy of a run: who may talk to its pods."""

from __future__ import annotations

from rl_operator.model.names import RAY_PORTS, RUN_LABEL, Manifest, run_labels
from rl_operator.plan.effective import Effective

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
# Pods of KubeRay carry it by its chart and by its plain manifests, which differ in the name (the latter: `kuberay`).
_KUBERAY = {"app.kubernetes.io/component": "kuberay-operator"}


def network_policy(effective: Effective) -> Manifest:
    """Lets in the run's own pods, the operator, and KubeRay, which submits and watches the job. Nobody else.

    What the pods may reach stays open: they download models and data, and ask the cluster's DNS.
    """
    ports = [
        {"protocol": "TCP", "port": port} for port in sorted({RAY_PORTS["dashboard"], effective.status_port})
    ]
    namespace = {"matchLabels": {_NAMESPACE_NAME: effective.settings.namespace}}
    own = {"matchLabels": {RUN_LABEL: effective.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": effective.metadata(effective.name, run_labels(effective.name)),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": own}]},
                {"from": [{"namespaceSelector": namespace}], "ports": ports},
                {
                    "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": _KUBERAY}}],
                    "ports": ports,
                },
            ],
        },
    }
