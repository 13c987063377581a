"""A test plays KubeRay and the drivers where neither is: clusters and pods out of RayJobs, and what is said of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from fake_driver import FakeDriver
from kube import KubeApi


@contextmanager
def driver(placement: dict[str, Any] | None = None) -> Iterator[str]:
    """Drivers of all runs, which train and write every checkpoint that they are asked for: where they answer.

    `placement`: what they say of it."""
    asked = {"step": 3}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            asked["step"] += 1
        said: dict[str, Any] = {"phase": "Training", "step": asked["step"], "maxSteps": 1000}
        checkpoint = {"step": asked["step"], "uri": f"file:///checkpoints/{asked['step']}"}
        return web.json_response({**said, "placement": placement, "checkpoint": checkpoint})

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = FakeDriver(answer)
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


class KubeRay:
    """What KubeRay does in a namespace, when the test says so."""

    def __init__(self, kube: KubeApi, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace

    def make_cluster(self, job: dict[str, Any]) -> dict[str, Any]:
        """The RayCluster of a RayJob, without pods."""
        labels = {
            key: text for key, text in job["metadata"]["labels"].items() if key.startswith("rltrain.dev/")
        }
        name = f"{job['metadata']['name']}-abcde"
        metadata = {"name": name, "labels": labels | _managed(job), "ownerReferences": _owner(job)}
        spec = job["spec"]["rayClusterSpec"]
        made = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}
        self.kube.apply(made, namespace=self.namespace)
        return self.kube.get("raycluster", name, "-n", self.namespace)

    def make_pod(
        self, cluster: dict[str, Any], group: dict[str, Any], name: str, node: str | None = None
    ) -> str:
        """A pod of a group's template; with a `node`, one that nobody need place. Returns its name."""
        name = f"{cluster['metadata']['name']}-{name}"
        metadata = group["template"]["metadata"] | {"name": name, "ownerReferences": _owner(cluster)}
        spec = group["template"]["spec"] | ({"nodeName": node} if node else {})
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.kube.apply(pod, namespace=self.namespace)
        return name

    def start_pod(self, name: str) -> None:
        """As the kubelet of its node does it."""
        ready = [{"type": "Ready", "status": "True"}]
        self._tell("pod", name, {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready})

    def start_job(self, cluster: dict[str, Any]) -> None:
        """The RayJob of a cluster runs: its driver can be asked."""
        name, (job,) = cluster["metadata"]["name"], cluster["metadata"]["ownerReferences"]
        status = {
            "rayClusterName": name,
            "jobDeploymentStatus": "Running",
            "jobStatus": "RUNNING",
            "rayClusterStatus": {"state": "ready", "head": {"serviceName": f"{name}-head-svc"}},
        }
        self._tell("rayjob", job["name"], status)

    def end_pods(self) -> None:
        """As the kubelet and KubeRay do it, when their time is over."""
        for kind in ("pods", "rayclusters"):
            self.kube.kubectl(
                "delete", kind, "--all", "-n", self.namespace, "--grace-period=0", "--force", "--wait=true"
            )

    def _tell(self, kind: str, name: str, status: dict[str, Any]) -> None:
        where = ("-n", self.namespace, "--subresource=status", "--type=merge")
        self.kube.kubectl("patch", kind, name, *where, "-p", json.dumps({"status": status}))


def _owner(document: dict[str, Any]) -> list[dict[str, Any]]:
    metadata = document["metadata"]
    about = {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return [about | {"controller": True}]


def _managed(document: dict[str, Any]) -> dict[str, str]:
    name = "app.kubernetes.io/managed-by"
    return {name: document["metadata"]["labels"][name]}
