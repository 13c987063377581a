"""The end-to-end tests' fixture that enforces NetworkPolicies: its rules are walked through as the kernel does it."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from policy_rules import CHAIN, ruleset, selected

RANGES = ["10.244.0.0/24", "10.244.1.0/24"]
NAMESPACES = [
    {"metadata": {"name": "red", "labels": {"team": "red", "kubernetes.io/metadata.name": "red"}}},
    {"metadata": {"name": "blue", "labels": {"team": "blue"}}},
    {"metadata": {"name": "bare"}},
]
OUTSIDE, METADATA, NEW, GATEWAY = "172.18.0.9", "169.254.169.254", "10.244.1.99", "10.244.1.1"


def pod(namespace: str, ip: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    ports = [
        {"name": "web", "containerPort": 8000},
        {"name": "names", "containerPort": 53, "protocol": "UDP"},
    ]
    status = {"podIP": ip, "phase": spec.pop("phase", "Running")}
    metadata = {"name": "a", "namespace": namespace, "creationTimestamp": spec.pop("created", "2024")}
    if labels is not None:
        metadata["labels"] = labels
    return {
        "metadata": metadata,
        "spec": {"containers": [{"ports": ports}, {"name": "second"}], **spec},
        "status": status,
    }


SERVER, CLIENT, OTHER = "10.244.1.2", "10.244.1.3", "10.244.0.4"
PODS = [
    pod("red", SERVER, {"app": "server"}),
    pod("red", CLIENT, {"app": "client"}),
    pod("blue", OTHER, {"app": "client"}),
    pod("bare", "10.244.0.7"),
]


def policy(namespace: str = "red", name: str = "server", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace},
        "spec": {"podSelector": {"matchLabels": {"app": name}}} | spec,
    }


def passes(
    policies: list[dict[str, Any]],
    source: str,
    to: str,
    port: int = 8000,
    protocol: str = "tcp",
    pods: list[dict[str, Any]] = PODS,
) -> bool:
    """Whether a new connection gets through the rules."""
    chains: dict[str, list[list[str]]] = {}
    lines = ruleset(policies, pods, NAMESPACES, RANGES).splitlines()
    assert (lines[0], lines[-1]) == ("*filter", "COMMIT")
    for line in lines[1:-1]:
        if line.startswith(":"):
            chains[line[1:].split()[0]] = []
        else:
            append, chain, *words = line.split()
            assert append == "-A"
            chains[chain].append(words)

    def fits(words: list[str]) -> bool:
        options = dict(zip(words[::2], words[1::2], strict=True))
        if "--ctstate" in options:
            return False  # it is a new one
        first, _, last = options.get("--dport", f"{port}").partition(":")
        return (
            ipaddress.ip_address(source) in ipaddress.ip_network(options.get("-s", "0.0.0.0/0"))
            and ipaddress.ip_address(to) in ipaddress.ip_network(options.get("-d", "0.0.0.0/0"))
            and options.get("-p", protocol) == protocol
            and int(first) <= port <= int(last or first)
        )

    def walk(chain: str) -> bool:
        for words in chains[chain]:
            if fits(words[:-2]):
                jump, target = words[-2:]
                if jump == "-g":  # from where it returns to whoever called this one
                    return walk(target)
                return {"RETURN": True, "DROP": False}[target]
        return True

    return walk(CHAIN)


def test_without_policies_everything_that_is_known_passes() -> None:
    assert passes([], CLIENT, SERVER)
    assert passes([], OUTSIDE, SERVER)
    assert passes([], CLIENT, OUTSIDE)
    assert passes([], CLIENT, GATEWAY)
    assert passes([], OUTSIDE, METADATA)


def test_an_address_that_is_not_known_yet_reaches_nothing_and_is_not_reached() -> None:
    assert not passes([], NEW, SERVER)
    assert not passes([], NEW, METADATA)
    assert not passes([], CLIENT, NEW)


@pytest.mark.parametrize("gone", [{"phase": "Succeeded"}, {"phase": "Failed"}, {"hostNetwork": True}])
def test_a_pod_that_is_over_or_has_the_nodes_address_has_none_of_its_own(gone: dict[str, Any]) -> None:
    assert not passes([], CLIENT, NEW, pods=[*PODS, pod("red", NEW, **gone)])
    assert passes([], CLIENT, NEW, pods=[*PODS, pod("red", NEW)])
    assert passes([], CLIENT, SERVER, pods=[*PODS, pod("red", "")]), "one without an address is nothing yet"


def test_an_address_is_the_youngest_pods() -> None:
    again = [pod("red", NEW, {"app": "server"}, created="2026"), pod("red", NEW, {}, created="2025")]
    assert not passes([policy()], CLIENT, NEW, pods=[*PODS, *again])


def test_who_is_selected_is_denied_the_rest() -> None:
    denied = [policy()]
    assert not passes(denied, CLIENT, SERVER)
    assert not passes(denied, OUTSIDE, SERVER)
    assert passes(denied, SERVER, CLIENT), "egress stays open"
    assert passes(denied, OTHER, CLIENT), "who is not selected stays open"
    assert passes(denied, SERVER, SERVER), "a pod reaches itself"
    assert passes([policy("blue")], CLIENT, SERVER), "one of another namespace"
    assert not passes([policy(podSelector={})], SERVER, CLIENT), "an empty selector is everybody"


@pytest.mark.parametrize(
    ("spec", "ingress", "egress"),
    [
        ({}, True, False),
        ({"egress": []}, True, True),
        ({"policyTypes": ["Egress"]}, False, True),
        ({"policyTypes": ["Ingress"], "egress": []}, True, False),
        ({"policyTypes": ["Ingress", "Egress"]}, True, True),
    ],
)
def test_directions_of_a_policy(spec: dict[str, Any], ingress: bool, egress: bool) -> None:
    assert passes([policy(**spec)], CLIENT, SERVER) is not ingress
    assert passes([policy(**spec)], SERVER, CLIENT) is not egress
    assert passes([policy(**spec)], SERVER, METADATA) is not egress


FROM_CLIENTS = {"podSelector": {"matchLabels": {"app": "client"}}}


@pytest.mark.parametrize(
    ("peers", "near", "far", "outside"),
    [
        (None, True, True, True),
        ([], True, True, True),
        ([FROM_CLIENTS], True, False, False),
        ([{"podSelector": {}}], True, False, False),
        ([{"namespaceSelector": {}}], True, True, False),
        ([{"namespaceSelector": {"matchLabels": {"team": "blue"}}}], False, True, False),
        ([{"namespaceSelector": {"matchLabels": {"team": "blue"}}, **FROM_CLIENTS}], False, True, False),
        (
            [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "none"}}}],
            False,
            False,
            False,
        ),
        (
            [
                {
                    "namespaceSelector": {
                        "matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["blue"]}]
                    }
                }
            ],
            True,
            False,
            False,
        ),
        ([{"ipBlock": {"cidr": "172.18.0.0/16"}}, FROM_CLIENTS], True, False, True),
        ([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.0/16"]}}], False, False, True),
        ([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.1.0/24", "172.16.0.0/12"]}}], False, True, False),
        ([{"ipBlock": {"cidr": "172.18.0.0/16", "except": ["172.0.0.0/8"]}}], False, False, False),
        ([{"ipBlock": {"cidr": "fd00::/8"}}], False, False, False),
    ],
)  # fmt: skip
def test_peers(peers: list[dict[str, Any]] | None, near: bool, far: bool, outside: bool) -> None:
    rule = {} if peers is None else {"from": peers}
    let_in = [policy(ingress=[rule])]
    assert [passes(let_in, each, SERVER) for each in (CLIENT, OTHER, OUTSIDE)] == [near, far, outside]
    rule = {} if peers is None else {"to": peers}
    let_out = [policy(egress=[rule], policyTypes=["Egress"])]
    assert [passes(let_out, SERVER, each) for each in (CLIENT, OTHER, OUTSIDE)] == [near, far, outside]


def test_both_ends_must_agree_and_policies_add_up() -> None:
    out = policy(name="client", egress=[{"to": [{"podSelector": {}}]}], policyTypes=["Egress"])
    inwards = policy(ingress=[{"from": [FROM_CLIENTS]}])
    assert passes([out, inwards], CLIENT, SERVER)
    assert not passes([out, policy()], CLIENT, SERVER)
    assert passes([out, policy(), inwards], CLIENT, SERVER), "what one allows no other forbids"


@pytest.mark.parametrize(
    ("ports", "tcp", "udp"),
    [
        (None, {53, 7999, 8000, 8001, 8010, 8011}, {53, 8000}),
        ([], {53, 7999, 8000, 8001, 8010, 8011}, {53, 8000}),
        ([{"port": 8000}], {8000}, set()),
        ([{"port": 8000, "endPort": 8010}], {8000, 8001, 8010}, set()),
        ([{"port": 53, "protocol": "UDP"}], set(), {53}),
        ([{"protocol": "TCP"}], {53, 7999, 8000, 8001, 8010, 8011}, set()),
        ([{"port": "web"}, {"port": 8011}], {8000, 8011}, set()),
        ([{"port": "names", "protocol": "UDP"}], set(), {53}),
        ([{"port": "names"}], set(), set()),
        ([{"port": "unheard"}], set(), set()),
    ],
)
def test_ports(ports: list[dict[str, Any]] | None, tcp: set[int], udp: set[int]) -> None:
    rule = {} if ports is None else {"ports": ports}
    for policies in (
        [policy(ingress=[rule])],
        [policy(name="client", egress=[{"to": [{"podSelector": {}}], **rule}], policyTypes=["Egress"])],
    ):
        for protocol, open_ports in (("tcp", tcp), ("udp", udp)):
            tried = (53, 8000) if protocol == "udp" else (53, 7999, 8000, 8001, 8010, 8011)
            found = {port for port in tried if passes(policies, CLIENT, SERVER, port, protocol)}
            assert found == open_ports, (protocol, policies)


def test_a_named_port_of_everybody_is_the_receivers() -> None:
    named = policy(name="client", egress=[{"ports": [{"port": "web"}]}], policyTypes=["Egress"])
    assert passes([named], CLIENT, SERVER, 8000)
    assert passes([named], CLIENT, OTHER, 8000)
    assert not passes([named], CLIENT, SERVER, 8001)
    assert not passes([named], CLIENT, OUTSIDE, 8000), "what is no pod has no named ports"
    both = policy(name="client", egress=[{"ports": [{"port": "web"}, {"port": 443}]}], policyTypes=["Egress"])
    assert passes([both], CLIENT, OUTSIDE, 443)
    block = {"to": [{"ipBlock": {"cidr": "10.244.1.0/24"}}], "ports": [{"port": "web"}]}
    near = policy(name="client", egress=[block], policyTypes=["Egress"])
    assert [passes([near], CLIENT, each) for each in (SERVER, OTHER)] == [True, False]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"a": "1", "b": "2"}}, True),
        ({"matchLabels": {"a": "1", "c": "3"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["2"]}]}, False),
        ({"matchExpressions": [{"key": "c", "operator": "In", "values": ["2"]}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "c", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "c", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_selectors(selector: dict[str, Any] | None, found: bool) -> None:
    assert selected(selector, {"a": "1", "b": "2"}) is found
