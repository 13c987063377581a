"""RLPolicyServices of the scenarios: a handle on one that was applied, and clients that ask it all the time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_client import ASKED, RESTRICTED_CONTAINER, RESTRICTED_POD, Cluster, wait_for

PROMPT = "698004908="
TOKENS = 9
RESULT = "/tmp/result.json"
CLIENTS = Path(__file__).with_name("steady_clients.py")


def service_document(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A service that everybody in the namespace may ask."""
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLPolicyService",
        "metadata": {"name": name, "namespace": namespace},
        # On a busy node answers wait longer, which is no failure.
        "spec": {"profile": "e2e", "auth": {"anonymous": True}, "limits": {"queue": 5000}} | spec,
    }


class PolicyService:
    """An RLPolicyService on the cluster."""

    def __init__(self, cluster: Cluster, name: str, namespace: str):
        self.cluster, self.name, self.namespace = cluster, name, namespace

    @property
    def status(self) -> dict[str, Any]:
        """Its status; empty when there is none yet, or no service."""
        found = self.cluster.get("rlpolicyservice", self.name, self.namespace) or {}
        status: dict[str, Any] = found.get("status") or {}
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition; empty when it is not set."""
        return next((each for each in self.status.get("conditions", []) if each["type"] == kind), {})

    def wait_for_reason(self, kind: str, reason: str, seconds: float) -> str:
        """The message of a condition, once it has that reason."""

        def look() -> str | None:
            found = self.condition(kind)
            return str(found["message"]) if found.get("reason") == reason else None

        return wait_for(f"service {self.name} has {kind} {reason}", look, seconds, self.describe)

    @property
    def serving(self) -> str:
        """Version that it serves; empty: none."""
        return str((self.status.get("serving") or {}).get("version", ""))

    def promotions(self, result: str) -> list[dict[str, Any]]:
        """Those that came to this."""
        return [one for one in self.status.get("promotions", []) if one["result"] == result]

    def wait_for_promotions(self, result: str, count: int, seconds: float) -> list[dict[str, Any]]:
        """Those that came to this, once there are so many."""

        def look() -> list[dict[str, Any]] | None:
            found = self.promotions(result)
            return found if len(found) >= count else None

        return wait_for(
            f"service {self.name} has {count} candidates that were {result}", look, seconds, self.describe
        )

    def wait_for_the_end(self, digest: str, result: str, seconds: float) -> dict[str, Any]:
        """What is said of this checkpoint, once it has come to this."""

        def look() -> dict[str, Any] | None:
            return next((one for one in self.promotions(result) if one["digest"] == digest), None)

        return wait_for(f"checkpoint {digest[:8]} is {result}", look, seconds, self.describe)

    def patch(self, spec: dict[str, Any]) -> None:
        """Change fields of its spec."""
        change = json.dumps({"spec": spec})
        self.cluster.kubectl(
            "patch", "rlpolicyservice", self.name, "-n", self.namespace, "--type=merge", "-p", change
        )

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        """Its pods."""
        labels = f"rltrain.dev/service={self.name}" + (f",rltrain.dev/role={role}" if role else "")
        return self.cluster.list("pods", self.namespace, labels)

    def describe(self) -> str:
        """What is known when something did not come."""
        pods = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in self.pods()}
        return f"its status: {json.dumps(self.status)}; its pods: {pods}"


class Clients:
    """What clients in a pod were answered so far."""

    def __init__(self, cluster: Cluster, pod: str, namespace: str):
        self._cluster, self._pod, self._namespace = cluster, pod, namespace

    @property
    def seen(self) -> dict[str, Any]:
        """Requests sent, answered and failed; answers by version, with the texts of each."""
        # On a busy node one of hundreds of calls fails.
        return wait_for("the tally of the clients can be read", self.tally, 60, lambda: self._read().stderr)

    def tally(self) -> dict[str, Any]:
        """The same, empty where it cannot be read now."""
        done = self._read()
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}

    def _read(self) -> subprocess.CompletedProcess[str]:
        return self._cluster.kubectl(
            "exec", self._pod, "-n", self._namespace, "--", "cat", RESULT, check=False
        )

    def wait_for_version(self, version: str, seconds: float) -> list[str]:
        """Texts of answers by this version, once there is one."""

        def look() -> list[str] | None:
            found: list[str] | None = (self.seen.get("versions") or {}).get(version)
            return found

        return wait_for(f"clients are answered by {version}", look, seconds, lambda: json.dumps(self.seen))

    def failed_of_those_sent(self, since: float) -> list[dict[str, Any]]:
        """What went wrong with requests that were sent since a time (of `time.time`): of others some end later."""
        return [one for one in self.seen["failed"] if one["at"] - one["after"] >= since]

    def assert_none_failed(self) -> None:
        """All requests so far were answered."""
        failed = self.seen["failed"]
        assert failed == [], failed[:5]

    def assert_all_answered(self, at_least: int) -> None:
        """No request failed, and no answer was of an unnamed version or of two."""
        self.assert_none_failed()
        seen = self.seen
        assert seen["answered"] >= at_least, seen
        assert all(len(texts) == 1 for texts in seen["versions"].values()), seen["versions"]


@contextmanager
def steady_clients(
    service: PolicyService,
    image: str,
    rate: float = 10.0,
    name: str = "clients",
    key: str = "",
    url: str = "",
) -> Iterator[Clients]:
    """Clients that send so many requests a second for as long as this lasts, whatever becomes of the answers.

    With `key`, an API key, if there is one; to `url`, such as http://HOST/v1, in place of the service's own address.
    """
    url = url or f"http://{service.name}-serve-svc:8000/v1"
    arguments = [f"{url}/completions", service.name, str(rate), PROMPT, str(TOKENS), RESULT]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": service.namespace},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": RESTRICTED_POD,
            "containers": [
                {
                    "name": "clients",
                    "image": image,
                    "command": ["python", "-c", CLIENTS.read_text(), *arguments],
                    "env": [{"name": "API_KEY", "value": key}] if key else [],
                    "resources": ASKED,
                    "securityContext": RESTRICTED_CONTAINER,
                }
            ],
        },
    }
    service.cluster.apply(pod)
    clients = Clients(service.cluster, name, service.namespace)
    try:
        wait_for(
            "clients are answered",
            lambda: clients.tally().get("answered"),
            120,
            lambda: f"they saw {json.dumps(clients.tally())}; {service.describe()}",
        )
        yield clients
    except BaseException:
        # The pod goes, and with it what they saw.
        print("clients saw", json.dumps(clients.tally())[-4000:])
        raise
    finally:
        service.cluster.kubectl("delete", "pod", name, "-n", service.namespace, "--wait=false", check=False)
