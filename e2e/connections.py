"""Whether a pod reaches another: pods that answer on two ports, and attempts to connect that are made inside pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cluster_client import ASKED, RESTRICTED_CONTAINER, RESTRICTED_POD, Cluster, is_ready, wait_for

# The first one has the name `web`, and `names` over UDP.
PORT, OTHER_PORT = 8000, 8001
_SERVE = f"""
import socketserver, threading
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        if isinstance(self.request, tuple):
            self.request[1].sendto(self.request[0], self.client_address)
        else:
            while data := self.request.recv(100):
                self.request.sendall(data)
for port in {PORT, OTHER_PORT}:
    for kind in (socketserver.ThreadingTCPServer, socketserver.ThreadingUDPServer):
        threading.Thread(target=kind(("", port), Echo).serve_forever).start()
"""
# Answers in time or not: a connection over TCP, whose first packet may be lost once, or an echo over UDP.
_TRY = """
import concurrent.futures, json, socket, sys
def reached(host, port, protocol="tcp"):
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as end:
        end.settimeout(1.5)
        try:
            end.connect((host, port))
            if protocol == "udp":
                end.send(b"?")
                end.recv(1)
            return True
        except OSError:
            return False
tries = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(len(tries)) as together:
    print(json.dumps(list(together.map(lambda one: reached(*one), tries))))
"""
Target = tuple[str, int] | tuple[str, int, str]


def answering_pod(
    namespace: str, name: str, image: str, labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod that echoes what it is sent on both ports, over TCP and UDP; `image` has Python."""
    ports = [
        {"name": "web", "containerPort": PORT},
        {"name": "names", "containerPort": PORT, "protocol": "UDP"},
    ]
    container = {
        "name": "echo",
        "image": image,
        "command": ["python", "-c", _SERVE],
        "ports": ports,
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "resources": ASKED,
        "securityContext": RESTRICTED_CONTAINER,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name} | (labels or {})},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": RESTRICTED_POD,
            "containers": [container],
            **spec,
        },
    }


def address(cluster: Cluster, namespace: str, name: str) -> str:
    """The address of a pod, once it is ready."""

    def ready() -> str:
        pod = cluster.get("pod", name, namespace) or {}
        return str(pod["status"].get("podIP", "")) if is_ready(pod) else ""

    return wait_for(f"pod {name} is ready", ready, 90)


def reached(cluster: Cluster, namespace: str, pod: str, *targets: Target, container: str = "") -> list[bool]:
    """Which of the targets (host, port, `udp` where it is not TCP) answer a pod that has Python."""
    place = ["-n", namespace, pod, *(["-c", container] if container else [])]
    done = cluster.kubectl("exec", *place, "--", "python", "-c", _TRY, json.dumps(targets))
    found: list[bool] = json.loads(done.stdout)
    return found


def settles(
    cluster: Cluster,
    namespace: str,
    pod: str,
    expected: Sequence[bool],
    *targets: Target,
    seconds: float = 30.0,
) -> bool:
    """Whether the targets come to be reached as expected; a policy is enforced a moment after it is written.

    What is denied must be so twice in a row: on a busy node one attempt may fail by itself.
    """

    def look() -> bool:
        try:
            return all(
                reached(cluster, namespace, pod, *targets) == list(expected)
                for _ in range(1 if all(expected) else 2)
            )
        except AssertionError:  # a look that the node does not answer is none
            return False

    try:
        return wait_for(f"{targets} are reached from {pod}: {list(expected)}", look, seconds)
    except AssertionError:
        return False
