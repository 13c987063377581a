"""kubectl with deadlines, and objects without it: what the scenarios ask a cluster, and what is kept when one fails."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cluster_reader import Reader

# A deadline says how long a thing may take on two quiet cores. What is late on busy ones is no defect; what hangs does so
# many times longer as well.
PATIENCE = 3.0
COMMAND_SECONDS = 120.0 * PATIENCE
# Of an API server, or of one behind it, that was too slow for this request, or away: it says nothing of what was asked (as
# in cluster_reader.py).
BUSY = (
    "etcdserver: ",
    "TLS handshake timeout",
    "unable to return a response in the time allotted",
    "failed calling webhook",
    "connection refused",
    "connection reset by peer",
    "http2: client connection lost",
    "i/o timeout",
    "unexpected EOF",
    "error dialing backend",
)
# Everything that a run may own; what is looked at after a deletion and kept after a failure.
KINDS = (
    "rlpolicyservices.rltrain.dev",
    "rayservices.ray.io",
    "rltrainingruns.rltrain.dev",
    "rayjobs.ray.io",
    "rayclusters.ray.io",
    "jobs.batch",
    "pods",
    "services",
    "configmaps",
    "secrets",
    "networkpolicies.networking.k8s.io",
    "poddisruptionbudgets.policy",
    "persistentvolumeclaims",
)
# What the restricted pod security standard asks of a pod and of its containers.
RESTRICTED_POD = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# Of the scenarios' own containers: on busy cores one that asks for nothing waits for all others.
ASKED = {"requests": {"cpu": "50m"}}
T = TypeVar("T")


class Cluster:
    """The cluster of the current kube context, or as somebody else sees it whose kubeconfig is given."""

    def __init__(self, kubeconfig: Path | None = None):
        self.environment = os.environ | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
        self._reader = Reader(kubeconfig)

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl.

        Raises:
            AssertionError: it failed, and `check` is set; with what it wrote.
        """
        for left in (5, 4, 3, 2, 1, 0):
            done = subprocess.run(
                ["kubectl", *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                env=self.environment,
            )
            if not (left and check and done.returncode and any(words in done.stderr for words in BUSY)):
                break
            time.sleep(3)
        if check and done.returncode:
            raise AssertionError(
                f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done

    def helm(self, namespace: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run helm, again where the API server was too slow for it; whatever its exit code."""
        # Of an earlier call that was killed, or failed: helm would wait for it for ever.
        pending = "owner=helm,name=rltrain,status in (pending-install,pending-upgrade,pending-rollback)"
        for left in (2, 1, 0):
            self.kubectl("delete", "secrets", "-n", namespace, "-l", pending, check=False)
            done = subprocess.run(
                ["helm", *arguments, "-n", namespace],
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
                env=self.environment,
            )
            if not (left and done.returncode and any(words in done.stderr for words in BUSY)):
                break
            time.sleep(5)
        return done

    def apply(self, *documents: dict[str, Any]) -> None:
        """Apply objects client-side, as a user does it."""
        everything = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(everything))

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None when it is not there."""
        return self._reader.get(kind, name, namespace)

    def list(self, kinds: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """Objects of one kind or several, comma-separated; of all namespaces when none is given."""
        return self._reader.list(kinds, namespace, selector)

    def logs(self, pod: str, namespace: str, *arguments: str) -> str:
        """What a pod wrote, or why that is not known."""
        done = self.kubectl("logs", "-n", namespace, pod, "--all-containers", *arguments, check=False)
        return done.stdout + done.stderr

    def answered(self, *arguments: str) -> str:
        """What kubectl prints, once it ends well: on a busy node one of hundreds of calls fails."""

        def look() -> subprocess.CompletedProcess[str] | None:
            done.append(self.kubectl(*arguments, check=False))
            return done[-1] if done[-1].returncode == 0 else None

        done: list[subprocess.CompletedProcess[str]] = []
        return wait_for(f"kubectl {' '.join(arguments)} ends well", look, 60, lambda: f"{done[-1]}").stdout

    def log_of(self, pod: str, namespace: str) -> str:
        """What a pod wrote, once that can be read."""
        return self.answered("logs", "-n", namespace, pod, "--all-containers")

    def run_once(
        self,
        namespace: str,
        name: str,
        image: str,
        script: str,
        *,
        claim: str = "",
        secret: str = "",
        seconds: float = 240,
    ) -> str:
        """What a shell script prints within so many seconds; the pod is deleted afterwards.

        It sees a claim's files at /data, and a Secret's keys as environment variables.
        """
        volume: dict[str, Any] = (
            {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        )
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": RESTRICTED_POD,
                "containers": [
                    {
                        "name": "script",
                        "image": image,
                        "command": ["bash", "-ec", script],
                        "resources": ASKED,
                        "envFrom": [{"secretRef": {"name": secret}}] if secret else [],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "securityContext": RESTRICTED_CONTAINER,
                    }
                ],
                "volumes": [{"name": "data", **volume}],
            },
        }
        self.apply(pod)

        def finished() -> str | None:
            phase: str = (self.get("pod", name, namespace) or {}).get("status", {}).get("phase", "")
            return phase if phase in ("Succeeded", "Failed") else None

        phase = wait_for(f"pod {name} ends", finished, seconds)
        output = self.log_of(name, namespace)
        self.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
        assert phase == "Succeeded", output
        return output

    def save(self, folder: Path, namespaces: list[str]) -> None:
        """Write logs, events and objects of namespaces into a folder, for people to read."""
        folder.mkdir(parents=True, exist_ok=True)
        nodes = self.kubectl("describe", "nodes", check=False)
        (folder / "nodes.txt").write_text(nodes.stdout + nodes.stderr)
        for namespace in namespaces:
            place = folder / namespace
            place.mkdir(exist_ok=True)
            kinds = ",".join(kind for kind in KINDS if kind != "secrets") + ",deployments.apps"
            objects = self.kubectl("get", kinds, "-n", namespace, "-o", "yaml", check=False)
            (place / "objects.yaml").write_text(objects.stdout + objects.stderr)
            events = self.kubectl("get", "events", "-n", namespace, "--sort-by=.lastTimestamp", check=False)
            (place / "events.txt").write_text(events.stdout + events.stderr)
            for pod in self.list("pods", namespace):
                name = pod["metadata"]["name"]
                (place / f"{name}.log").write_text(self.logs(name, namespace))
                if any(state.get("restartCount") for state in pod["status"].get("containerStatuses", [])):
                    (place / f"{name}.previous.log").write_text(self.logs(name, namespace, "--previous"))


def is_ready(found: Mapping[str, Any]) -> bool:
    """Whether a pod or a node is ready; one that was made just now has no conditions yet."""
    conditions = found.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def wait_for(
    what: str,
    look: Callable[[], T | None],
    seconds: float,
    why: Callable[[], str] | None = None,
    *,
    every: float = 0.5,
) -> T:
    """The first true answer of `look`, which is asked every so many seconds.

    Args:
        what: the fact that is waited for, in the message when it does not come.
        look: answers something true when it holds.
        seconds: deadline, on a quiet machine (`PATIENCE`).
        why: what is known when the deadline has passed.
        every: seconds from one look to the next, more than half a one where a look is dear.

    Raises:
        AssertionError: the deadline has passed.
    """
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}" + (f"; {why()}" if why else ""))
        time.sleep(every)
