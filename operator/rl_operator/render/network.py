"""NetworkPolicy of a run: who may talk to its pods, and with whom they may."""

from __future__ import annotations

from collections.abc import Mapping

from rl_api.egress import EgressSpec
from rl_api.profile import ProfileSpec
from rl_operator.model.names import RAY_PORTS, ROLE_LABEL, RUN_LABEL, SAMPLER, Manifest, server_policy_name
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective

_NAMESPACE_NAME = "kubernetes.io/metadata.name"


def network_policy(effective: Effective) -> Manifest:
    """Lets in the run's own pods, the operator, which asks the driver, and KubeRay, which submits the job. Nobody else.

    Lets out to DNS, the run's own pods and what the profile allows. A peer is bound by its namespace *and* its labels:
    the latter alone anybody can give a pod.
    """
    settings, own = effective.settings, {"podSelector": {"matchLabels": {RUN_LABEL: effective.name}}}
    operator = pods_of(settings.namespace, settings.labels)
    kuberay = pods_of(settings.kuberay_namespace, settings.kuberay_labels)
    return isolated(
        effective.metadata(effective.name),
        own,
        [
            {"from": [operator], "ports": [port(effective.status_port)]},
            {"from": [kuberay], "ports": [port(RAY_PORTS["dashboard"])]},
        ],
        settings,
        effective.profile,
    )


def server_policies(effective: Effective) -> list[Manifest]:
    """NetworkPolicy of the samplers of a run for which a server outside of it samples: out to where the profile says that
    the server is, besides what all pods of the run may reach. Also where that is nothing: it may have been more."""
    server = effective.spec.sampler.endpoint
    if server is None:
        return []
    rules = [one for rule in effective.profile.allow.endpoints_at(server.url) for one in rule.egress]
    labels = {RUN_LABEL: effective.name, ROLE_LABEL: SAMPLER}
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": effective.metadata(server_policy_name(effective.name)),
            "spec": {
                "podSelector": {"matchLabels": labels},
                "policyTypes": ["Egress"],
                "egress": list(map(_egress, rules)),
            },
        }
    ]


def isolated(
    metadata: Manifest, own: Manifest, ingress: list[Manifest], settings: Settings, profile: ProfileSpec
) -> Manifest:
    """NetworkPolicy of the pods that `own` selects: each other, and what `ingress` says, may come in; out to DNS, each other
    and what the profile allows."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            **own,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [own]}, *ingress],
            "egress": [dict(settings.dns), {"to": [own]}, *map(_egress, profile.allow.egress)],
        },
    }


def pods_of(namespace: str, labels: Mapping[str, str]) -> Manifest:
    """Peer of a rule: pods of a namespace with these labels."""
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: namespace}},
        "podSelector": {"matchLabels": dict(labels)},
    }


def port(number: int) -> Manifest:
    """Port of a rule."""
    return {"protocol": "TCP", "port": number}


def _egress(rule: EgressSpec) -> Manifest:
    if rule.cidr is not None:
        peer: Manifest = {"ipBlock": {"cidr": rule.cidr, "except": rule.forbidden}}
    else:
        peer = {"podSelector": {"matchLabels": dict(rule.pods or {})}}
        if rule.namespaces is not None:
            peer["namespaceSelector"] = {"matchLabels": dict(rule.namespaces)}
    return {"to": [peer]} | ({"ports": [port(number) for number in rule.ports]} if rule.ports else {})
