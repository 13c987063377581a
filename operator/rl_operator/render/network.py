"""NetworkPolicy of a run: who may talk to its pods, and with whom they may."""

from __future__ import annotations

from collections.abc import Mapping

from rl_api.egress import EgressSpec
from rl_operator.model.names import RAY_PORTS, RUN_LABEL, Manifest
from rl_operator.plan.effective import Effective

_NAMESPACE_NAME = "kubernetes.io/metadata.name"


def network_policy(effective: Effective) -> Manifest:
    """Lets in the run's own pods, the operator, which asks the driver, and KubeRay, which submits the job. Nobody else.

    Lets out to DNS, the run's own pods and what the profile allows. A peer is bound by its namespace *and* its labels:
    the latter alone anybody can give a pod.
    """
    settings, own = effective.settings, {"podSelector": {"matchLabels": {RUN_LABEL: effective.name}}}
    operator = _pods(settings.namespace, settings.labels)
    kuberay = _pods(settings.kuberay_namespace, settings.kuberay_labels)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": effective.metadata(effective.name),
        "spec": {
            **own,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [own]},
                {"from": [operator], "ports": [_port(effective.status_port)]},
                {"from": [kuberay], "ports": [_port(RAY_PORTS["dashboard"])]},
            ],
            "egress": [dict(settings.dns), {"to": [own]}, *map(_egress, effective.profile.allow.egress)],
        },
    }


def _pods(namespace: str, labels: Mapping[str, str]) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: namespace}},
        "podSelector": {"matchLabels": dict(labels)},
    }


def _port(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}


def _egress(rule: EgressSpec) -> Manifest:
    if rule.cidr is not None:
        peer: Manifest = {"ipBlock": {"cidr": rule.cidr, "except": rule.forbidden}}
    else:
        peer = {"podSelector": {"matchLabels": dict(rule.pods or {})}}
        if rule.namespaces is not None:
            peer["namespaceSelector"] = {"matchLabels": dict(rule.namespaces)}
    return {"to": [peer]} | ({"ports": [_port(port) for port in rule.ports]} if rule.ports else {})
