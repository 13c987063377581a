from __future__ import annotations

from dataclasses import replace
from typing import Any

from operator_worlds import SETTINGS, make_plan, make_profile, make_run

from rl_operator.plan.effective import Effective, plan
from rl_operator.render.network import network_policy

OWN = {"podSelector": {"matchLabels": {"rltrain.dev/run": "sums"}}}


def _policy(effective: Effective | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = network_policy(effective or make_plan())["spec"]
    return spec


def _peer(namespace: str, **labels: str) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()}},
    }


def test_who_may_come_in() -> None:
    spec = _policy()
    assert spec["podSelector"] == OWN["podSelector"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [
        {"from": [OWN]},
        {
            "from": [_peer("rltrain-system", name="rltrain", component="operator")],
            "ports": [{"protocol": "TCP", "port": 8090}],
        },
        {
            "from": [_peer("kuberay-system", component="kuberay-operator")],
            "ports": [{"protocol": "TCP", "port": 8265}],
        },
    ]


def test_nobody_comes_in_by_labels_alone_or_from_a_namespace_as_a_whole() -> None:
    for rule in _policy()["ingress"][1:]:
        for peer in rule["from"]:
            assert peer["namespaceSelector"]["matchLabels"]
            assert peer["podSelector"]["matchLabels"]


def test_operator_and_kuberay_are_where_the_chart_says() -> None:
    settings = replace(
        SETTINGS,
        namespace="ours",
        labels={"app.kubernetes.io/instance": "second"},
        kuberay_namespace="ray",
        kuberay_labels={"app.kubernetes.io/name": "kuberay"},
    )
    effective = plan(make_run(), [], settings)
    assert isinstance(effective, Effective)
    peers = [rule["from"][0] for rule in _policy(effective)["ingress"][1:]]
    assert peers == [_peer("ours", instance="second"), _peer("ray", name="kuberay")]


def test_pods_reach_dns_and_each_other_and_nothing_else() -> None:
    dns, own = _policy()["egress"]
    assert own == {"to": [OWN]}
    cluster, node = dns["to"]
    assert cluster["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kube-system"}
    assert cluster["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
    assert node == {"ipBlock": {"cidr": "169.254.20.10/32"}}
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}


def test_what_the_profile_allows_never_has_the_metadata_service_in_it() -> None:
    egress = [
        {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"], "ports": [443]},
        {"cidr": "::/0"},
        {"pods": {"app": "objects"}, "ports": [7070, 7071]},
        {"namespaces": {"team": "storage"}},
    ]
    allowed = _policy(make_plan(None, make_profile(default=True, allow={"egress": egress})))["egress"][2:]
    addresses = ["10.0.0.0/8", "169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32"]
    assert allowed == [
        {
            "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": addresses}}],
            "ports": [{"protocol": "TCP", "port": 443}],
        },
        {
            "to": [
                {
                    "ipBlock": {
                        "cidr": "::/0",
                        "except": [
                            "fe80::/10",
                            "fd00:ec2::/32",
                            "fd20:ce::/32",
                            "fd00:c1::a9fe:a9fe/128",
                            "fd00:42::42/128",
                        ],
                    }
                }
            ]
        },
        {
            "to": [{"podSelector": {"matchLabels": {"app": "objects"}}}],
            "ports": [{"protocol": "TCP", "port": 7070}, {"protocol": "TCP", "port": 7071}],
        },
        {
            "to": [
                {
                    "podSelector": {"matchLabels": {}},
                    "namespaceSelector": {"matchLabels": {"team": "storage"}},
                }
            ]
        },
    ]
