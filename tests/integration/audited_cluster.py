"""A real API server that keeps an audit log, with the chart, and an operator with the chart's rights."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from kube import KubeApi
from operator_inside import run
from operator_process import OperatorProcess

SYSTEM = "rltrain-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:rltrain"
Right = tuple[str, str, str, str, str]
"""Where (runs: where runs are; system: beside the operator), API group, resource, name if it matters, verb."""


class Cluster:
    """An API server that keeps an audit log, with the chart, and an operator with the chart's rights."""

    def __init__(self, kube: KubeApi, log: Path, folder: Path) -> None:
        self.kube, self.log = kube, log
        token = kube.kubectl("create", "token", "rltrain", "-n", SYSTEM).stdout.strip()
        config = yaml.safe_load(kube.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        options = ("--all-namespaces", "--leader-elect", f"--operator-namespace={SYSTEM}")
        self.operator = OperatorProcess(folder / "kubeconfig", folder / "operator.log", *options)
        self.namespace = kube.new_namespace("team")

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kube.apply(*documents, namespace=self.namespace)

    def train(self, name: str, **spec: Any) -> None:
        self.apply(run(name, **({"profile": None} | spec)))

    def there(self, what: str, name: str) -> dict[str, Any]:
        done = self.kube.kubectl("get", what, name, "-n", self.namespace, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found

    def reasons(self, name: str) -> list[str]:
        status = self.there("rlrun", name).get("status", {})
        return [one["reason"] for one in status.get("conditions", ())]

    def change(self, what: str, name: str, change: dict[str, Any], *more: str) -> None:
        where = (what, name, "-n", self.namespace, "--type=merge", "-p", json.dumps(change))
        self.kube.kubectl("patch", *where, *more)

    def status(self, what: str, name: str, **status: Any) -> None:
        self.change(what, name, {"status": status}, "--subresource=status")

    def delete(self, what: str, name: str) -> None:
        self.kube.kubectl("delete", what, name, "-n", self.namespace, "--wait=false")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return self.operator.until(condition, what, 240.0)

    def cluster_of(self, job: str) -> str:
        """KubeRay has made the RayCluster of a RayJob, and its head; returns its name."""
        made = self.until(lambda: self.there("rayjob", job), f"{job} is made")
        spec, labels, name = made["spec"]["rayClusterSpec"], made["metadata"]["labels"], f"{job}-abcde"

        def owner(of: dict[str, Any]) -> list[dict[str, Any]]:
            reference = {"apiVersion": "ray.io/v1", "kind": of["kind"], "controller": True}
            return [reference | {part: of["metadata"][part] for part in ("name", "uid")}]

        metadata = {"name": name, "labels": labels, "ownerReferences": owner(made)}
        self.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec})
        template = spec["headGroupSpec"]["template"]
        metadata = template["metadata"] | {"name": f"{name}-head"}
        metadata["ownerReferences"] = owner(self.there("raycluster", name))
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        self.status("rayjob", job, rayClusterName=name, jobDeploymentStatus="Initializing")
        return name

    def used(self) -> set[Right]:
        """Rights that the operator has used."""
        return {right for event in self.events() for right in rights_of(event)}

    def events(self) -> list[dict[str, Any]]:
        # The last line may be there in part.
        found = [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]
        assert {event["user"]["username"] for event in found} == {ACCOUNT}
        return found

    def granted(self) -> set[Right]:
        """Rights that the roles of the chart give."""
        found: set[Right] = set()
        for where, role in (
            ("runs", "rltrain-cluster"),
            ("runs", "rltrain-runs"),
            ("system", "rltrain-leader"),
        ):
            kind = ("clusterrole", role) if where == "runs" else ("role", role, "-n", SYSTEM)
            for rule in self.kube.get(*kind)["rules"]:
                names = rule.get("resourceNames", [""])
                found |= {
                    (where, group, resource, name, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for name in names
                    for verb in rule["verbs"]
                }
        return found


def rights_of(event: dict[str, Any]) -> Iterator[Right]:
    """What a request needed. One that applies what was not there needs two."""
    about = event.get("objectRef")
    if about is None or "resource" not in about:
        return  # what the server can do: everybody may ask
    where = "system" if about.get("namespace") == SYSTEM else "runs"
    part = f"/{about['subresource']}" if about.get("subresource") else ""
    named = about["name"] if (where, about["resource"], event["verb"]) == ("system", "secrets", "get") else ""
    resource = f"{about['resource']}{part}"
    yield where, about.get("apiGroup", ""), resource, named, event["verb"]
    if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
        yield where, about.get("apiGroup", ""), resource, named, "create"


@contextlib.contextmanager
def restless(cluster: Cluster, name: str) -> Iterator[None]:
    """A run that somebody changes all the time, so that what was decided about it is old when it is written."""
    kube, stop = cluster.kube, threading.Event()
    path = f"/apis/rltrain.dev/v1alpha1/namespaces/{cluster.namespace}/rltrainingruns/{name}"
    context = ssl.create_default_context(cafile=str(kube.certificate))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    headers = {"Authorization": f"Bearer {kube.token}", "Content-Type": "application/merge-patch+json"}

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            body = json.dumps({"metadata": {"annotations": {"restless": str(number)}}}).encode()
            request = urllib.request.Request(kube.server + path, body, headers, method="PATCH")
            with opener.open(request, timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
