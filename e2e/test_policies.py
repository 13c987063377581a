"""What enforces network policies here, the fixture or a plug-in, on its own: plain pods on two nodes, and who reaches whom.

Each policy is written while all connections are open, seen to bite, and taken away again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from cluster_client import Cluster
from conftest import OPERATOR_IMAGE, SPARE, open_namespace
from connections import OTHER_PORT, PORT, address, answering_pod, settles

SPARE_NODE = {
    "nodeSelector": {SPARE: "true"},
    "tolerations": [{"key": SPARE, "operator": "Exists", "effect": "NoSchedule"}],
}
OTHERS = ("near", "distant", "foreign")


class Pods:
    """A server, who is near, who is on another node, and who is in another namespace; with their addresses."""

    def __init__(self, cluster: Cluster, home: str, abroad: str):
        self.cluster, self.home, self.abroad = cluster, home, abroad
        # A cluster of one node has all of them there.
        elsewhere = SPARE_NODE if cluster.list("nodes", selector=f"{SPARE}=true") else {}
        image = OPERATOR_IMAGE
        cluster.apply(
            answering_pod(home, "server", image),
            answering_pod(home, "near", image),
            answering_pod(home, "distant", image, **elsewhere),
            answering_pod(abroad, "foreign", image, {"app": "near"}),
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "server", "namespace": home},
                "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": PORT}]},
            },
        )
        self.namespaces = {"server": home, "near": home, "distant": home, "foreign": abroad}
        self.addresses = {name: address(cluster, place, name) for name, place in self.namespaces.items()}

    def who_reaches_the_server(self, expected: list[str], port: int = PORT, protocol: str = "tcp") -> None:
        """Of all others exactly these."""
        target = (self.addresses["server"], port, protocol)

        def as_expected(name: str) -> bool:
            return settles(self.cluster, self.namespaces[name], name, [name in expected], target)

        with ThreadPoolExecutor(len(OTHERS)) as together:
            found = dict(zip(OTHERS, together.map(as_expected, OTHERS), strict=True))
        assert all(found.values()), f"{expected} should reach {target}; as expected: {found}"

    def whom_the_server_reaches(self, expected: list[str], port: int = PORT, protocol: str = "tcp") -> None:
        """Of all others exactly these."""
        targets = [(self.addresses[name], port, protocol) for name in OTHERS]
        assert settles(self.cluster, self.home, "server", [name in expected for name in OTHERS], *targets)


@pytest.fixture(scope="module")
def pods(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Pods]:
    with ExitStack() as stack:
        home, abroad = (
            stack.enter_context(open_namespace(cluster, request, each)) for each in ("home", "abroad")
        )
        cluster.kubectl("label", "namespace", abroad, "team=abroad")
        yield Pods(cluster, home, abroad)


@pytest.fixture
def policy(pods: Pods) -> Iterator[Any]:
    """`policy(ingress=[...])`: for the server, until the test is over."""

    def write(selector: dict[str, Any] | None = None, **spec: Any) -> None:
        pods.cluster.apply(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "tried", "namespace": pods.home},
                "spec": {"podSelector": selector or {"matchLabels": {"app": "server"}}, **spec},
            }
        )

    pods.who_reaches_the_server(list(OTHERS))
    yield write
    pods.cluster.kubectl("delete", "networkpolicy", "tried", "-n", pods.home)


def test_ingress_by_pods_namespaces_and_addresses(pods: Pods, policy: Any) -> None:
    policy()
    pods.who_reaches_the_server([])
    pods.whom_the_server_reaches(list(OTHERS))
    policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "near"}}}]}])
    pods.who_reaches_the_server(["near"])  # the same labels in another namespace are somebody else's
    policy(ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"team": "abroad"}}}]}])
    pods.who_reaches_the_server(["foreign"])
    distant = f"{pods.addresses['distant']}/32"
    policy(ingress=[{"from": [{"ipBlock": {"cidr": distant}}]}])
    pods.who_reaches_the_server(["distant"])  # it has its own address, not its node's
    policy(ingress=[{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [distant]}}]}])
    pods.who_reaches_the_server(["near", "foreign"])


def test_ports_by_number_name_range_and_protocol(pods: Pods, policy: Any) -> None:
    for port, protocol in ((OTHER_PORT, "tcp"), (PORT, "udp"), (OTHER_PORT, "udp")):
        pods.who_reaches_the_server(list(OTHERS), port, protocol)
    everybody: dict[str, Any] = {"from": [{"namespaceSelector": {}}]}
    policy(ingress=[everybody | {"ports": [{"port": "web"}]}])
    pods.who_reaches_the_server(list(OTHERS))
    pods.who_reaches_the_server([], OTHER_PORT)
    pods.who_reaches_the_server([], PORT, "udp")
    policy(ingress=[everybody | {"ports": [{"port": "names", "protocol": "UDP"}]}])
    pods.who_reaches_the_server([])
    pods.who_reaches_the_server(list(OTHERS), PORT, "udp")
    policy(ingress=[everybody | {"ports": [{"port": PORT + 1, "endPort": PORT + 9}]}])
    pods.who_reaches_the_server([])
    pods.who_reaches_the_server(list(OTHERS), OTHER_PORT)


def test_egress_also_through_a_service(pods: Pods, policy: Any) -> None:
    [service] = pods.cluster.list("services", pods.home)
    server, virtual = (pods.addresses["server"], PORT), (service["spec"]["clusterIP"], 80)
    assert settles(pods.cluster, pods.home, "near", [True, True], server, virtual)
    near = {"matchLabels": {"app": "near"}}
    policy(near, policyTypes=["Egress"])
    assert settles(pods.cluster, pods.home, "near", [False, False], server, virtual)
    pods.who_reaches_the_server(["distant", "foreign"])
    policy(
        near, policyTypes=["Egress"], egress=[{"to": [{"podSelector": {"matchLabels": {"app": "server"}}}]}]
    )
    # A Service is its pods.
    others = [(pods.addresses[each], PORT) for each in ("distant", "foreign")]
    assert settles(pods.cluster, pods.home, "near", [True, True, False, False], server, virtual, *others)
    policy(near, egress=[{"to": [{"namespaceSelector": {"matchLabels": {"team": "abroad"}}}]}])
    assert settles(pods.cluster, pods.home, "near", [False, False, False, True], server, virtual, *others)


def test_a_connection_that_is_there_stays(pods: Pods, policy: Any) -> None:
    program = (
        f"import socket; end = socket.create_connection(('{pods.addresses['server']}', {PORT}));"
        "print('there', flush=True); end.settimeout(60); end.send(input().encode()); print(end.recv(9))"
    )
    line = ["kubectl", "exec", "-i", "-n", pods.home, "distant", "--", "python", "-c", program]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "there\n"
        policy()
        pods.who_reaches_the_server([])
        said, _ = client.communicate("hello\n", timeout=90)
    assert said == "b'hello'\n"


def test_a_new_pod_is_denied_before_anything_else(pods: Pods, policy: Any) -> None:
    """Its first attempts, from its first moment on, for as long as rules take to be written."""
    chosen = {"key": "app", "operator": "In", "values": ["fresh", "near"]}
    policy({"matchExpressions": [chosen]}, policyTypes=["Egress"])
    # The policy is known by now, and what is new is the pod.
    assert settles(pods.cluster, pods.home, "near", [False], (pods.addresses["server"], PORT))
    program = (
        "import socket, time; end = time.monotonic() + 4; opened = 0\n"
        "while time.monotonic() < end:\n"
        f"    try: socket.create_connection(('{pods.addresses['server']}', {PORT}), 0.2); opened += 1\n"
        "    except OSError: time.sleep(0.01)\n"
        "print(opened, 'opened')"
    )
    fresh = answering_pod(pods.home, "fresh", OPERATOR_IMAGE)
    fresh["spec"]["restartPolicy"] = "Never"
    container = fresh["spec"]["containers"][0]
    container["command"] = ["python", "-c", program]
    container.pop("readinessProbe")
    pods.cluster.apply(fresh)
    pods.cluster.kubectl(
        "wait", "pod/fresh", "-n", pods.home, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=340s"
    )
    assert pods.cluster.log_of("fresh", pods.home) == "0 opened\n"
