"""Carries out one Gateway and its HTTPRoute with Debian's HAProxy: an e2e fixture, and no Gateway implementation.

    routes.py CLASS ADDRESS    in a pod; CLASS: GatewayClass that it stands for; ADDRESS: where clients reach it

It looks twice a second: the oldest Gateway of its class gets an address, the backends of the first HTTPRoute that belongs
to it get their weights in HAProxy, by the Services' cluster addresses, and both are marked as ready. It knows nothing else:
no listeners, no matches, no filters, no further Gateways.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc"
ROUTES = "/apis/gateway.networking.k8s.io/v1"
CONTROLLER = "rltrain.dev/e2e-gateway"
SOCKET = "/tmp/haproxy.sock"
PLACES = 8
CONTEXT = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))

Object = dict[str, Any]


def ask(path: str, change: Object | None = None) -> Object:
    """The API server's answer; `change`: a merge patch."""
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    body = None
    if change is not None:
        headers["Content-Type"], body = "application/merge-patch+json", json.dumps(change).encode()
    request = urllib.request.Request(API + path, body, headers, method="PATCH" if change else "GET")
    with urllib.request.urlopen(request, timeout=10, context=CONTEXT) as answer:
        found: Object = json.loads(answer.read())
    return found


def tell(*commands: str) -> None:
    """Commands for HAProxy, one after the other."""
    for command in commands:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            line.connect(SOCKET)
            line.sendall(f"{command}\n".encode())
            said = line.makefile().read().strip()
        print(f"{command}: {said or 'done'}", flush=True)


def conditions(generation: int, *kinds: str) -> list[Object]:
    """All of them true."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fact = {"status": "True", "reason": "Ready", "message": "HAProxy has it", "lastTransitionTime": now}
    return [{"type": kind, "observedGeneration": generation, **fact} for kind in kinds]


def shares(route: Object, namespace: str) -> dict[tuple[str, int], int]:
    """Weight by address and port of the backends."""
    found = {}
    for one in route["spec"]["rules"][0]["backendRefs"]:
        service = ask(f"/api/v1/namespaces/{namespace}/services/{one['name']}")
        found[service["spec"]["clusterIP"], one["port"]] = int(one.get("weight", 1))
    return found


class Places:
    """What HAProxy has been told."""

    def __init__(self) -> None:
        self.weights: dict[tuple[str, int], int] = {}
        self.place: dict[tuple[str, int], int] = {}

    def follow(self, wanted: dict[tuple[str, int], int]) -> None:
        """Tell HAProxy what has changed: first what comes or gets more, so that no moment has nobody."""
        for backend, weight in sorted(wanted.items(), key=lambda one: -one[1]):
            if backend not in self.place:
                free = min(set(range(1, PLACES + 1)) - set(self.place.values()))
                self.place[backend] = free
                name = f"clusters/cluster{free}"
                tell(f"set server {name} addr {backend[0]} port {backend[1]}")
                tell(f"set server {name} weight {weight}", f"set server {name} state ready")
            elif self.weights[backend] != weight:
                tell(f"set server clusters/cluster{self.place[backend]} weight {weight}")
        for backend in set(self.place) - set(wanted):
            tell(f"set server clusters/cluster{self.place.pop(backend)} state maint")
        self.weights = wanted


def look(gateway_class: str, address: str, places: Places, ready: set[tuple[str, int]]) -> None:
    """One look at what there is; `ready`: what was marked, by uid and generation."""
    found = [
        one for one in ask(f"{ROUTES}/gateways")["items"] if one["spec"]["gatewayClassName"] == gateway_class
    ]
    if not found:
        places.follow({})
        return
    gateway = min(found, key=lambda one: str(one["metadata"]["creationTimestamp"]))["metadata"]
    namespace, name = gateway["namespace"], gateway["name"]
    if (mark := (gateway["uid"], gateway["generation"])) not in ready:
        facts = conditions(gateway["generation"], "Accepted", "Programmed")
        status = {"conditions": facts, "addresses": [{"type": "Hostname", "value": address}]}
        ask(f"{ROUTES}/namespaces/{namespace}/gateways/{name}/status", {"status": status})
        ready.add(mark)
    for route in ask(f"{ROUTES}/namespaces/{namespace}/httproutes")["items"]:
        parent = next((one for one in route["spec"]["parentRefs"] if one["name"] == name), None)
        if parent is None:
            continue
        places.follow(shares(route, namespace))
        about = route["metadata"]
        if (mark := (about["uid"], about["generation"])) not in ready:
            facts = conditions(about["generation"], "Accepted", "ResolvedRefs")
            status = {"parents": [{"parentRef": parent, "controllerName": CONTROLLER, "conditions": facts}]}
            ask(f"{ROUTES}/namespaces/{namespace}/httproutes/{about['name']}/status", {"status": status})
            ready.add(mark)
        return


def main(gateway_class: str, address: str) -> int:
    """Until HAProxy ends."""
    haproxy = subprocess.Popen(["haproxy", "-db", "-f", str(Path(__file__).with_name("haproxy.cfg"))])
    places, ready = Places(), set[tuple[str, int]]()
    while haproxy.poll() is None:
        try:
            look(gateway_class, address, places, ready)
        except Exception as error:  # it is looked at again, and HAProxy goes on
            print(f"not this time: {type(error).__name__}: {error}", flush=True)
        time.sleep(0.5)
    return haproxy.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
