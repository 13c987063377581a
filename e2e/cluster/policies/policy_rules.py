"""NetworkPolicies as rules of iptables: what they say of the pods that there are, for every node the same.

An e2e fixture, for clusters whose network plug-in enforces none: simple and complete, not made for many pods. Pure; objects
are what the API server gives. Only IPv4.

Traffic that a policy is about passes a node's chain FORWARD, or INPUT where it is for the node itself, after the address
of a Service has been replaced by a pod's. What a node itself sends (the kubelet's probes) passes neither.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Object = dict[str, Any]
# Where FORWARD and INPUT jump to; then what a pod sends, and what is for a pod.
CHAIN, SENT, RECEIVED = "NETPOL", "NETPOL-SENT", "NETPOL-RECEIVED"
EVERYTHING = "0.0.0.0/0"


def ruleset(
    policies: Sequence[Object], pods: Sequence[Object], namespaces: Sequence[Object], ranges: Sequence[str]
) -> str:
    """Input of `iptables-restore --noflush`, which replaces the three chains at once.

    Connections that are there stay. An address of the pods' ranges that no pod is known to have reaches nothing and is
    not reached: a new pod, before it is known what it may.

    Args:
        policies, pods, namespaces: all objects of the cluster.
        ranges: the nodes' ranges of pod addresses; the first address of each is its node's.
    """
    labels = {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in namespaces}
    known = _by_address(pods)
    lines = ["*filter", *(f":{chain} - [0:0]" for chain in (CHAIN, SENT, RECEIVED))]
    lines.append(f"-A {CHAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN")
    lines += [f"-A {CHAIN} -s {each} -g {SENT}" for each in ranges]
    lines.append(f"-A {CHAIN} -g {RECEIVED}")
    for address, pod in known.items():
        for direction, chain, mine, then in (
            ("Egress", SENT, f"-s {address}", f"-g {RECEIVED}"),
            ("Ingress", RECEIVED, f"-d {address}", "-j RETURN"),
        ):
            selecting = [each for each in policies if _selects(each, pod, direction)]
            if not selecting:
                lines.append(f"-A {chain} {mine} {then}")
                continue
            # A pod reaches itself.
            matches = {f"-s {address} -d {address}": None}
            for policy in selecting:
                matches |= dict.fromkeys(_matches(policy, direction, pod, address, known, labels))
            lines += [f"-A {chain} {match} {then}" for match in matches]
            lines.append(f"-A {chain} {mine} -j DROP")
    lines.append(f"-A {SENT} -j DROP")
    for each in ranges:
        network = ipaddress.ip_network(each)
        lines += [f"-A {RECEIVED} -d {network[1]} -j RETURN", f"-A {RECEIVED} -d {network} -j DROP"]
    return "\n".join([*lines, "COMMIT", ""])


def _by_address(pods: Iterable[Object]) -> dict[str, Object]:
    """Pods with an address of their own, by it; where two have one, the younger."""
    found = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        status = pod.get("status", {})
        if status.get("phase") in ("Succeeded", "Failed") or pod["spec"].get("hostNetwork"):
            continue
        if address := status.get("podIP"):
            found[address] = pod
    return found


def _selects(policy: Object, pod: Object, direction: str) -> bool:
    """Whether traffic of a pod in a direction is what a policy allows and no more."""
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return (
        direction in types
        and policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and selected(spec.get("podSelector"), pod["metadata"].get("labels") or {})
    )


def selected(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether labels fit a selector; everything fits an empty one."""
    selector = selector or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or []:
        key, operator, values = each["key"], each["operator"], each.get("values") or []
        fits = {
            "In": key in labels and labels[key] in values,
            "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not fits[operator]:
            return False
    return True


def _matches(
    policy: Object,
    direction: str,
    pod: Object,
    address: str,
    known: Mapping[str, Object],
    labels: Mapping[str, Mapping[str, str]],
) -> Iterable[str]:
    """What of a pod's traffic a policy allows, as conditions of iptables."""
    sends = direction == "Egress"
    for rule in policy["spec"].get(direction.lower()) or []:
        peers = rule.get("to" if sends else "from")
        for network, peer in _peers(peers, policy["metadata"]["namespace"], known, labels):
            for port in rule.get("ports") or [{}]:
                # A port's name is one of the pod that is connected to: its number differs from pod to pod.
                ends = {network: peer if sends else pod}
                if sends and peer is None and isinstance(port.get("port"), str):
                    ends = {each: known[each] for each in known if _within(each, network)}
                for end, receiver in ends.items():
                    way = f"-s {address} -d {end}" if sends else f"-s {end} -d {address}"
                    yield from (f"{way}{condition}" for condition in _conditions(port, receiver))


def _peers(
    peers: Sequence[Object] | None,
    namespace: str,
    known: Mapping[str, Object],
    labels: Mapping[str, Mapping[str, str]],
) -> Iterable[tuple[str, Object | None]]:
    """Networks that a rule is about, each with its pod where it is one."""
    if not peers:
        yield EVERYTHING, None
    for peer in peers or []:
        if block := peer.get("ipBlock"):
            for network in _without(block["cidr"], block.get("except") or []):
                yield network, None
            continue
        for address, pod in known.items():
            of = pod["metadata"]["namespace"]
            if "namespaceSelector" in peer:
                near = of in labels and selected(peer["namespaceSelector"], labels[of])
            else:
                near = of == namespace
            if near and selected(peer.get("podSelector"), pod["metadata"].get("labels") or {}):
                yield address, pod


def _without(cidr: str, holes: Sequence[str]) -> Sequence[str]:
    """The networks that are left of one; of other address families none."""
    whole = ipaddress.ip_network(cidr, strict=False)
    if whole.version != 4:
        return []
    left = [whole]
    for each in holes:
        hole = ipaddress.IPv4Network(each, strict=False)
        left = [part for network in left for part in _less(network, hole)]
    return [str(network) for network in sorted(left)]


def _less(network: ipaddress.IPv4Network, hole: ipaddress.IPv4Network) -> Iterable[ipaddress.IPv4Network]:
    if network.subnet_of(hole):
        return []
    return network.address_exclude(hole) if hole.subnet_of(network) else [network]


def _within(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network)


def _conditions(port: Object, receiver: Object | None) -> Iterable[str]:
    """Protocol and number that a port of a rule means; none where it is a name that the receiver does not have."""
    if not port:
        return [""]
    protocol, number = port.get("protocol", "TCP"), port.get("port")
    numbers = [f" --dport {number}:{port.get('endPort', number)}"] if number else [""]
    if isinstance(number, str):
        containers = receiver["spec"]["containers"] if receiver else []
        numbers = [
            f" --dport {each['containerPort']}"
            for container in containers
            for each in container.get("ports") or []
            if (each.get("name"), each.get("protocol", "TCP")) == (number, protocol)
        ]
    return [f" -p {protocol.lower()}{each}" for each in numbers]
