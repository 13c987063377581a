"""An inference server outside the runs: vLLM's own, as a Deployment in a scenario's namespace."""

from __future__ import annotations

from typing import Any

from cluster_client import ASKED, RESTRICTED_CONTAINER, RESTRICTED_POD, Cluster, wait_for
from training_run import CLAIM

NAME = "inference"
PORT = 8000
URL = f"http://{NAME}:{PORT}"
LABELS = {"app.kubernetes.io/name": NAME}
# Where the server has mounted the claim.
FOLDER = "/models/live"
# The run's model in its sizes and words, and of another seed: what it samples is the run's policy only with its weights.
_SERVE = f"""
import os, sys
from rl_api.run import TinyModelSpec
from rl_trainer.model.resolve import resolve_model
from rl_trainer.rollout.engines.vllm_arguments import WORKER_EXTENSION
model = resolve_model("tiny", "/tmp/models", TinyModelSpec.model_validate_json(sys.argv[1]), seed=12345)
os.execv(sys.executable, [
    sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", "{PORT}",
    "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--worker-extension-cls", WORKER_EXTENSION,
    "--load-format", "safetensors", "--dtype", "float32", "--max-num-seqs", "128",
    "--enforce-eager", "--no-enable-chunked-prefill",
])
"""
_SETTINGS = {
    "VLLM_SERVER_DEV_MODE": "1",  # opens what changes its weights
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def serve_inference(cluster: Cluster, namespace: str, image: str, sizes: str, seconds: float) -> None:
    """Serve a model of the preset `tiny` at URL until the namespace is deleted; it reads weights of the scenario's claim.

    Args:
        cluster: the cluster.
        namespace: where.
        image: has vLLM, and rltrain beside it.
        sizes: `model.tiny` of the runs that it is for, as JSON.
        seconds: until it must answer.
    """
    container: dict[str, Any] = {
        "name": "server",
        "image": image,
        "command": ["python", "-c", _SERVE, sizes],
        "env": [{"name": name, "value": value} for name, value in _SETTINGS.items()],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1},
        "resources": ASKED,
        "volumeMounts": [
            {"name": "weights", "mountPath": FOLDER, "readOnly": True},
            # vLLM's processes exchange more than the 64 MiB that a container has there.
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        "securityContext": RESTRICTED_CONTAINER,
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 0,
                    "securityContext": RESTRICTED_POD,
                    "containers": [container],
                    "volumes": [
                        {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM}},
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}},
                    ],
                },
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"selector": LABELS, "ports": [{"port": PORT}]},
    }
    cluster.apply(deployment, service)

    def ready() -> bool:
        found = cluster.get("deployment", NAME, namespace) or {}
        return bool(found.get("status", {}).get("readyReplicas"))

    def why() -> str:
        pods = cluster.list("pods", namespace, f"app.kubernetes.io/name={NAME}")
        return "; ".join(cluster.logs(pod["metadata"]["name"], namespace)[-1500:] for pod in pods)

    wait_for("the inference server answers", ready, seconds, why)


def end_inference(cluster: Cluster, namespace: str) -> None:
    """Take the server away; its Service stays."""
    cluster.kubectl("scale", f"deployment/{NAME}", "-n", namespace, "--replicas=0")

    def gone() -> bool:
        return not cluster.list("pods", namespace, f"app.kubernetes.io/name={NAME}")

    wait_for("the inference server is gone", gone, 60)
