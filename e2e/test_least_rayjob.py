"""The tutorial's least RayJob, applied as its file says: the demo's actors are in the worker's pod, none beside the head."""

from __future__ import annotations

import re
from typing import Any

from cluster_client import Cluster, wait_for
from conftest import TRAINER_IMAGE, VERSION
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import EXAMPLES

FOLDER = EXAMPLES / "tutorials"
NAME = "buffer-demo"


def test_the_least_rayjob_works_in_its_workers_pod(cluster: Cluster, namespace: str) -> None:
    # It is a user's first one, without what the restricted standard asks of a pod.
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    cluster.kubectl("create", "configmap", "tutorials", "-n", namespace, f"--from-file={FOLDER}")
    text = (FOLDER / "13_rayjob.yaml").read_text()
    text = text.replace(f"rltrain-trainer:{VERSION}-cpu", TRAINER_IMAGE)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
    pods: dict[str, str] = {}

    def state() -> dict[str, Any]:
        """Of the job; the names of its pods are noted meanwhile, as they go a minute after it has ended."""
        for pod in cluster.list("pods", namespace, "ray.io/node-type"):
            pods[pod["metadata"]["name"]] = pod["metadata"]["labels"]["ray.io/node-type"]
        found: dict[str, Any] = (cluster.get("rayjob", NAME, namespace) or {}).get("status", {})
        return found

    wait_for(
        "the job has ended",
        lambda: state().get("jobStatus") in ("SUCCEEDED", "FAILED", "STOPPED"),
        START_SECONDS + TRAIN_SECONDS,
        lambda: f"{state()}",
    )
    said = cluster.answered("logs", "-n", namespace, "-l", f"job-name={NAME}", "--tail=-1")
    assert state()["jobStatus"] == "SUCCEEDED", said
    print(said)
    assert sorted(pods.values()) == ["head", "worker"]
    assert re.search(r"^100 +6400 ", said, re.M), said
    seats = dict(re.findall(r"^(channel|sampler \d|learner \d) +(\S+)$", said, re.M))
    [worker] = [pod for pod, kind in pods.items() if kind == "worker"]
    assert seats == dict.fromkeys(("channel", "sampler 0", "sampler 1", "learner 0"), worker)
