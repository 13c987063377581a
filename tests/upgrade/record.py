"""Records what the operator of a version has stored: python tests/upgrade/record.py TREE tests/upgrade/objects/VERSION

TREE is a checkout of that version, for instance of `git archive VERSION | tar -x -C TREE`. Its definitions go into a real
kube-apiserver, its operator works there as a process, and this program does what KubeRay, pods, drivers and users do, until
each run is where its name says. One file for each run, with everything that belongs to it; tests/upgrade/test_upgrade.py
reads them. Run it once for each release, with what was installed for `make test`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from kube import KubeApi, find_binaries, kuberay_definitions
from ports import free_ports

NAMESPACE = "team-a"
KINDS = "rlruns,rayjobs,rayclusters,configmaps,secrets,networkpolicies,poddisruptionbudgets,pods"
PROFILE = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingProfile",
    "metadata": {"name": "shared"},
    "spec": {
        "pools": [{"name": "cpu", "nodeSelector": {"pool": "cpu"}}],
        "defaults": {"retry": {"limit": 2}},
    },
}
SPEC: dict[str, Any] = {
    "profile": "shared",
    "model": {"source": "tiny"},
    "task": {"environment": "reasoning-gym", "name": "chain_sum", "args": {"min_terms": 2}},
    "sampler": {"replicas": 2},
    "checkpoint": {"storage": {"s3": "s3://checkpoints/team-a"}},
    "stop": {"maxSteps": 100, "maxDuration": "6h"},
}


class Drivers(BaseHTTPRequestHandler):
    """All drivers at one address: /NAMESPACE/RUN/status and /checkpoint."""

    def do_GET(self) -> None:
        self._answer(
            {"phase": "Training", "step": 7, "maxSteps": 100, "reward": 0.5, "tokensPerSecond": 812.5}
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/stopping/" in self.path:
            time.sleep(3600)  # its checkpoint takes a while
        self._answer({})

    def _answer(self, more: dict[str, Any]) -> None:
        kept = {"step": 5, "uri": "s3://checkpoints/team-a/run", "time": "2026-03-01T12:00:00Z"}
        body = json.dumps(more | {"checkpoint": kept}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Stage:
    """A cluster on which one program plays everybody but the operator."""

    def __init__(self, kube: KubeApi) -> None:
        self.kube = kube

    def run(self, name: str, **spec: Any) -> None:
        kind = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingRun", "metadata": {"name": name}}
        self.kube.apply(kind | {"spec": SPEC | spec}, namespace=NAMESPACE)

    def patch(self, what: str, name: str, change: dict[str, Any], *more: str) -> None:
        text = json.dumps(change)
        self.kube.kubectl("patch", what, name, "-n", NAMESPACE, "--type=merge", "-p", text, *more)

    def status(self, what: str, name: str, **status: Any) -> None:
        self.patch(what, name, {"status": status}, "--subresource=status")

    def stored(self, what: str, name: str) -> dict[str, Any]:
        return (
            self.kube.get(what, name, "-n", NAMESPACE, "--ignore-not-found") if self.there(what, name) else {}
        )

    def there(self, what: str, name: str) -> bool:
        found = self.kube.kubectl("get", what, name, "-n", NAMESPACE, "--ignore-not-found", "-o", "name")
        return bool(found.stdout.strip())

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"record: {what}: not in time")
            time.sleep(0.2)

    def reason(self, run: str, kind: str) -> str:
        conditions = self.stored("rlrun", run).get("status", {}).get("conditions", [])
        return next((str(one["reason"]) for one in conditions if one["type"] == kind), "")

    def says(self, run: str, kind: str, reason: str) -> bool:
        return self.reason(run, kind) == reason

    def begun(self, run: str, attempt: int = 1) -> None:
        self.until(lambda: self.there("rayjob", f"{run}-{attempt}"), f"{run} begins")

    def trains(self, run: str) -> None:
        """KubeRay has made the Ray cluster of the RayJob, all pods are ready, and the driver answers."""
        self.begun(run)
        job = self.stored("rayjob", f"{run}-1")
        cluster = f"{run}-1-abcde"
        owner = {key: job[key] for key in ("apiVersion", "kind")}
        owner |= {"name": f"{run}-1", "uid": job["metadata"]["uid"], "controller": True}
        labels = job["metadata"]["labels"]
        spec = job["spec"]["rayClusterSpec"]
        meta = {"name": cluster, "labels": labels, "ownerReferences": [owner]}
        document = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec}
        self.kube.apply(document, namespace=NAMESPACE)
        control = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster, "controller": True}
        control["uid"] = self.stored("raycluster", cluster)["metadata"]["uid"]
        ready = {"state": "ready", "head": {"serviceName": f"{cluster}-head-svc"}}
        groups = {"head": spec["headGroupSpec"]} | {one["groupName"]: one for one in spec["workerGroupSpecs"]}
        for group, parts in groups.items():
            for index in range(int(parts.get("replicas", 1))):
                pod = {"apiVersion": "v1", "kind": "Pod", "spec": parts["template"]["spec"]}
                meta = {
                    "name": f"{cluster}-{group}-{index}",
                    "labels": parts["template"]["metadata"]["labels"],
                    "ownerReferences": [control],
                }
                self.kube.apply(pod | {"metadata": meta}, namespace=NAMESPACE)
                conditions = [{"type": "Ready", "status": "True"}]
                self.status("pod", meta["name"], phase="Running", conditions=conditions, podIP="10.0.0.7")
        self.status("raycluster", cluster, **ready)
        running = {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "rayClusterName": cluster}
        self.status("rayjob", f"{run}-1", **running, rayClusterStatus=ready)
        self.until(lambda: self.reason(run, "Training") == "Running", f"{run} trains")

    def ends(self, run: str, **status: Any) -> None:
        self.status("rayjob", f"{run}-1", **status)
        self.without_pods(run)

    def without_pods(self, run: str) -> None:
        """KubeRay has taken the Ray cluster down."""
        of_run = ("-n", NAMESPACE, "-l", f"rltrain.dev/run={run}")
        self.kube.kubectl("delete", "pods,rayclusters", *of_run, "--force")


def play(stage: Stage) -> list[str]:
    """Bring each run to where its name says; returns their names."""
    stage.run("refused", profile="of-nobody")
    stage.run("starting")
    stage.run("queued", scheduling={"queue": "team-a"})
    stage.run("cluster", workload="Cluster")
    stage.run("no-checkpoints", checkpoint=None)
    for name in ("training", "stopping", "suspended", "succeeded", "failed", "retried"):
        stage.run(name)
    stage.begun("queued")
    stage.patch("rayjob", "queued-1", {"spec": {"suspend": True}})  # Kueue's webhook
    stage.status("rayjob", "queued-1", jobDeploymentStatus="Suspended")
    for name in ("training", "stopping", "suspended", "succeeded", "failed", "retried", "no-checkpoints"):
        stage.trains(name)
    for name in ("stopping", "suspended"):
        stage.patch("rlrun", name, {"spec": {"suspend": True}})
    stage.until(lambda: not stage.there("rayjob", "suspended-1"), "the RayJob of suspended goes")
    stage.without_pods("suspended")
    stage.ends("succeeded", jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    crash = "Job entrypoint command failed with exit code {}, last available logs:\nrltrain: learner 0 died\n"
    stage.ends(
        "failed",
        jobStatus="FAILED",
        jobDeploymentStatus="Failed",
        reason="AppFailed",
        message=crash.format(2),
    )
    stage.ends(
        "retried",
        jobStatus="FAILED",
        jobDeploymentStatus="Failed",
        reason="AppFailed",
        message=crash.format(1),
    )
    ends = ("suspended", "Suspended", "Suspended"), ("succeeded", "Succeeded", "Succeeded")
    for run, kind, word in (*ends, ("failed", "Failed", "InvalidInput")):
        stage.until(functools.partial(stage.says, run, kind, word), f"{run} is {word}")
    stage.begun("retried", 2)
    stage.until(
        lambda: stage.reason("stopping", "Suspended") == "Checkpointing", "stopping waits for its checkpoint"
    )
    stage.until(lambda: stage.reason("queued", "Admitted") == "Queued", "queued is queued")
    stage.until(lambda: stage.reason("refused", "Accepted") == "ProfileMissing", "refused is refused")
    names = ["refused", "starting", "queued", "cluster", "no-checkpoints", "training", "stopping"]
    return [*names, "suspended", "succeeded", "failed", "retried"]


def write(stage: Stage, names: list[str], folder: Path) -> None:
    """A file for each run."""
    folder.mkdir(parents=True, exist_ok=True)
    items = stage.kube.get(KINDS, "-n", NAMESPACE, "--show-managed-fields")["items"]
    profile = stage.kube.get("rlprofile", "shared", "--show-managed-fields")
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile, sort_keys=False))
    for name in names:
        its = [
            one
            for one in items
            if name == one["metadata"].get("labels", {}).get("rltrain.dev/run")
            or (one["kind"] == "RLTrainingRun" and one["metadata"]["name"] == name)
        ]
        for one in its:
            if one["kind"] == "Pod":
                del one["metadata"]["managedFields"]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(its, sort_keys=False))


def main(tree: Path, folder: Path) -> None:
    """Record everything."""
    binaries = find_binaries()
    assert binaries is not None, "run make test first: it builds a kube-apiserver"
    drivers = ThreadingHTTPServer(("127.0.0.1", 0), Drivers)
    threading.Thread(target=drivers.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        kube = KubeApi(Path(scratch), binaries)
        kube.start()
        operator = None
        try:
            kube.install_definitions(*sorted((tree / "charts/rltrain/templates/crds").glob("*.yaml")))
            kube.install_definitions(*kuberay_definitions())
            kube.kubectl("create", "namespace", NAMESPACE)
            kube.apply(PROFILE)
            path = os.pathsep.join(str(tree / part) for part in ("api", "operator"))
            environment = os.environ | {"PYTHONPATH": path, "KUBECONFIG": str(kube.kubeconfig)}
            url = f"http://127.0.0.1:{drivers.server_port}/{{namespace}}/{{run}}"
            metrics, health = (f"127.0.0.1:{port}" for port in free_ports(2))
            key = Path(scratch) / "key"
            key.write_bytes(b"the key of an operator that is recorded")
            options = [
                f"--driver-url={url}",
                f"--key-file={key}",
                f"--metrics-listen={metrics}",
                f"--health-listen={health}",
            ]
            operator = subprocess.Popen([sys.executable, "-m", "rl_operator", *options], env=environment)
            stage = Stage(kube)
            names = play(stage)
            operator.kill()
            operator.wait(20)
            write(stage, names, folder)
        finally:
            if operator is not None and operator.poll() is None:
                operator.kill()
            kube.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
