"""An engine of vLLM's that is in several pods: the engine in the first, and in each of the others workers of its own.

The sampler's actor starts an actor in each other pod, which is there for as long as it is: Ray ends an actor with its owner,
and vLLM's workers end with the process that started them. A pod that is lost takes the whole engine along: the sampler is
started anew. Every pod opens the model folder by itself; weights that change reach the workers of all pods through the
engine, as those of one pod. What engine and workers tell each other is not encrypted, and whoever reaches their ports is
believed: a run's pods are closed to others (`rl_operator.render.network`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_api.errors import ModelError, RLTrainError
from rl_trainer.flow.calls import answer
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.placement.own_device import own_device
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.vllm import free_port, open_workers
from rl_trainer.rollout.engines.vllm_needs import Pods, VllmOptions

# Between two looks at whether the engine is open, or another pod has failed.
_LOOK_SECONDS = 0.2


class EnginePodActor:
    """The actor of a pod other than the engine's."""

    def run(self, model: SharedFolder, slots: int, dtype: torch.dtype, options: VllmOptions) -> None:
        """Starts this pod's workers, and is with them for as long as they live.

        Raises:
            InvalidConfig: vLLM cannot run here, see `VllmEngine.open`.
            ModelError: it cannot open its part of the folder, or a worker died.
        """
        assert options.pods is not None, "else there is no other pod"
        pods = replace(options.pods, host=ray.util.get_node_ip_address())
        device = own_device()
        with model.opened() as folder:
            workers = open_workers(folder, slots, dtype, device, replace(options, pods=pods))
        workers.start_worker_monitor(inline=True)
        raise ModelError(f"pod {pods.rank} of {pods.count}, on node {pods.host}: a worker of vLLM died")


def open_over_pods(
    name: str,
    bundles: Sequence[int],
    model: SharedFolder,
    slots: int,
    dtype: torch.dtype,
    options: VllmOptions,
    open_here: Callable[[VllmOptions], Engine],
) -> Engine:
    """The engine of the actor that this runs in, with workers in other bundles of the actor's own placement group, which are
    alike to its own. When one of them goes later, this process ends.

    Args:
        name: of the sampler, as in messages.
        bundles: indices of the bundles of the other pods, in order.
        model: which all of them open.
        slots: sequences in flight.
        dtype: of the weights.
        options: of the engine, but for `pods`.
        open_here: opens the engine's own part with the options that it is given; it returns when all parts are there.

    Raises:
        RLTrainError: what `open_here` raises, or what keeps another pod's part from being opened.
    """
    host = ray.util.get_node_ip_address()
    options = replace(options, pods=Pods(len(bundles) + 1, 0, host, host, free_port(host)))
    calls = _start(bundles, model, slots, dtype, options)
    opened: Future[Engine] = Future()

    def work() -> None:
        try:
            opened.set_result(open_here(options))
        except BaseException as error:
            opened.set_exception(error)

    # A thread that nobody waits for: where another part does not come, vLLM waits for it much longer than we.
    threading.Thread(target=work, name="open", daemon=True).start()
    while not opened.done():
        if lost := _lost(calls, name, _LOOK_SECONDS):
            raise lost
    engine = opened.result()
    threading.Thread(target=_end_with, args=(calls, name), name="other pods", daemon=True).start()
    return engine


def _start(
    bundles: Sequence[int], model: SharedFolder, slots: int, dtype: torch.dtype, options: VllmOptions
) -> list[ray.ObjectRef[None]]:
    assert options.pods is not None
    group, context = ray.util.get_current_placement_group(), ray.get_runtime_context()
    assert group is not None, "a sampler has a bundle"
    own: dict[str, Any] = context.get_assigned_resources()
    calls = []
    for rank, bundle in enumerate(bundles, start=1):
        actor = ray.remote(EnginePodActor).options(
            num_cpus=own.get("CPU", 0.0),
            num_gpus=own.get("GPU", 0.0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
        )
        theirs = replace(options, pods=replace(options.pods, rank=rank))
        calls.append(actor.remote().run.remote(model, slots, dtype, theirs))
    return calls


def _lost(calls: list[ray.ObjectRef[None]], name: str, timeout: float | None) -> RLTrainError | None:
    """Why one of the other pods has gone, where that happens within so many seconds (None: whenever it does)."""
    done, _ = ray.wait(calls, timeout=timeout)
    for call in done:
        try:
            answer(call, f"another pod of {name}", "holding its part of the model", 60.0)
        except RLTrainError as error:
            return error
    return None


def _end_with(calls: list[ray.ObjectRef[None]], name: str) -> None:
    """Ends this process when another pod goes: calls of vLLM's would wait for its workers without end."""
    print(f"{name}: {_lost(calls, name, None)}", file=sys.stderr, flush=True)
    os._exit(1)
