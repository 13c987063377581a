"""Ray as the pods of a service start it, on this machine: a head without CPUs, nodes of replicas, and Ray Serve on them."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import requests
from ports import free_ports
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema
from safetensors.numpy import load_file, save_file

from rl_api.run import TinyModelSpec
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.model.presets import write_tiny
from rl_trainer.run.local_ray.processes import only_needed_processes, patient

SECONDS = 240.0
TOKEN = "the-operators-token"


def wait_for(condition: Callable[[], Any], what: Callable[[], str], seconds: float = SECONDS) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
    return found


def write_endless(folder: Path, seed: int, hidden_size: int = 32) -> Path:
    """A small random model that knows no end: answers are as long as they may be."""
    shape = TinyModelSpec(hidden_size=hidden_size, layers=1, heads=2, kv_heads=1, max_positions=2048)
    model = write_tiny(folder, shape, seed=seed)
    for name, field in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | {field: None}))
    # With the small weights of a preset all it does is to repeat the last character.
    weights = load_file(model / "model.safetensors")
    loud = {name: 8 * one if ".layers." in name and one.ndim == 2 else one for name, one in weights.items()}
    save_file(loud, model / "model.safetensors", metadata={"format": "pt"})
    return model


def write_run(folder: Path, steps: Mapping[int, Path]) -> Path:
    """A run folder with a checkpoint for each (step, model folder)."""
    store = CheckpointStore(folder / "checkpoints", keep=10)
    for step, model in steps.items():
        store.save(step, {"model": lambda target, model=model: shutil.copytree(model, target)})
    return folder


def policy_of(run: Path, step: int) -> dict[str, str]:
    """A checkpoint as a `user_config` names it."""
    (found,) = [
        one for one in CheckpointStore(run / "checkpoints", read_only=True).list() if one.step == step
    ]
    return {
        "source": str(found.path),
        "digest": found.digest,
        "version": f"svc-step-{step}-{found.digest[:8]}",
    }


class Service:
    """Both applications of a service, as its operator sees them."""

    def __init__(self, port: int, args: dict[str, Any], replicas: int, prefill: int = 0) -> None:
        self.url, self._port, self._args, self._replicas = f"http://127.0.0.1:{port}", port, args, replicas
        self._prefill = prefill

    def apply(self, policy: Mapping[str, Any] | None) -> None:
        """What KubeRay does when `serveConfigV2` has changed."""
        numbers = {"policy": self._replicas} | ({"prefill": self._prefill} if self._prefill else {})
        applications = [
            {
                "name": "control",
                "route_prefix": "/-/rltrain",
                "import_path": "rl_serve.application:control",
                "args": self._args,
            },
            {
                "name": "rltrain",
                "route_prefix": "/",
                "import_path": "rl_serve.application:policy",
                "args": self._args,
                "deployments": [
                    {"name": name, "num_replicas": number, "user_config": {"policy": policy}}
                    for name, number in numbers.items()
                ],
            },
        ]
        _get_global_client().deploy_apps(ServeDeploySchema.parse_obj({"applications": applications}))

    def scale(self, replicas: int) -> None:
        """As many are wanted from the next `apply` on."""
        self._replicas = replicas

    def control(self, method: str, path: str, token: str = TOKEN, **options: Any) -> requests.Response:
        """The answer of a control route."""
        headers = {"Authorization": f"Bearer {token}"}
        return requests.request(
            method, f"{self.url}/-/rltrain/{path}", headers=headers, timeout=60, **options
        )

    def status(self) -> dict[str, Any]:
        """What GET status says; empty while nobody answers."""
        try:
            answer = self.control("GET", "status")
        except requests.ConnectionError:
            return {}
        return dict(answer.json()) if answer.status_code == 200 else {}

    def replicas(self, **wanted: Any) -> bool:
        """Whether all replicas are there and say this of themselves."""
        found = self.status().get("replicas", [])
        return len(found) == self._replicas and all(wanted.items() <= one.items() for one in found)

    def wait(self, **wanted: Any) -> None:
        """Until all replicas say so."""
        wait_for(lambda: self.replicas(**wanted), lambda: f"not {wanted}: {self.status()}, {serve.status()}")

    def ask(self, prompt: str = "2+2=", **fields: Any) -> requests.Response:
        """A completion."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        return requests.post(f"{self.url}/v1/completions", json=body, timeout=SECONDS)


@contextmanager
def service(
    folder: Path,
    source: Mapping[str, Any],
    replicas: int = 2,
    ready: bool = True,
    prefill_replicas: int = 0,
    **args: Any,
) -> Iterator[Service]:
    """A service without a policy, on a Ray of its own that this process is connected to; `ready`: wait for its replicas."""
    (folder / "token").write_text(f"{TOKEN}\n")
    whole = {
        "service": "svc",
        "model": "small",
        "source": dict(source),
        "controlTokenFile": str(folder / "token"),
        "limits": {"context": 2048, "newTokens": 1500, "queue": 64, "timeoutSeconds": 120},
        **args,
    }
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = "rl_serve.proxy:middlewares"
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "20"
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    cluster, size = Cluster(), {"object_store_memory": 80 * 2**20}
    (port,) = free_ports(1)
    try:
        with patient(), only_needed_processes():
            cluster.add_node(num_cpus=0, resources={"head": 1}, include_dashboard=False, **size)
            for _ in range(replicas):
                cluster.add_node(num_cpus=1, resources={"replica": 1}, **size)
            for _ in range(prefill_replicas):
                cluster.add_node(num_cpus=1, resources={"prefill": 1}, **size)
            ray.init(address=cluster.address, log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host="127.0.0.1", port=port))
        made = Service(port, whole, replicas, prefill_replicas)
        made.apply(None)
        if ready:
            made.wait(version=None)
        yield made
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
