"""The operator in the process of a test, so that what it knows can be made old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kube import KubeApi
from kubernetes.aio import client, config

from rl_operator.kube.client import Api
from rl_operator.model.settings import Settings
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.metrics import Metrics

DEADLINE = 60.0  # waits end when what they wait for is there; a busy machine gets patience


def run(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": name},
        "spec": {
            "profile": "loop",
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "checkpoint": {"storage": {"path": "/var/lib/checkpoints"}},
            "stop": {"maxSteps": 5},
            **spec,
        },
    }


async def connected(kube: KubeApi, metrics: Metrics | None = None) -> Api:
    where = client.Configuration()
    await config.load_kube_config(str(kube.kubeconfig), client_configuration=where, persist_config=False)
    return Api(client.ApiClient(where), (metrics or Metrics()).api_called)


async def primed(kube: KubeApi, namespace: str) -> Controller:
    metrics = Metrics()
    controller = Controller(await connected(kube, metrics), Settings(), metrics, [namespace])
    await controller.prime()
    return controller


async def look(controller: Controller) -> None:
    """What a worker does, until there is nothing left to do at once; but for conflicts nothing goes wrong."""
    while controller.queue.depth:
        key = await controller.queue.get()
        await controller.attend(key)
        controller.queue.done(key)
    failures = [
        sample.labels["reason"]
        for metric in controller.metrics.errors.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.value
    ]
    assert failures in ([], ["Conflict"]), failures


async def awaited(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(DEADLINE):
        while not (found := await asyncio.to_thread(condition)):
            await asyncio.sleep(0.05)
    return found
