"""vLLM's engine over several devices: each layer divided, stages of layers, and stages in two pods, each of which is a
process of its own here, with devices of its own, connected as those of a run are. Tokens per second, and log-probs against
the learner's, before and after training: new weights have to reach every part.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from gpu_lane import agreement
from gpu_lane.child import Child, ChildFailed, call, progress
from gpu_lane.engine import decoding, engines, open_engine, vllm_options
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.shapes import SHAPES

DIVISIONS = ((2, 1, 1), (1, 2, 1), (1, 2, 2), (2, 2, 2))
"""Parts of a layer, stages, pods."""
# All pods are on this machine.
_HOST = "127.0.0.1"
# Devices on CPUs: processes.
_PROCESSES = 2


def measure(job: Job) -> Findings:
    """Rows of every division for which there are devices."""
    kinds, missing = engines()
    if "vllm" not in kinds:
        return Findings(skipped=missing)
    findings = Findings()
    devices = job.gpus if job.device == "cuda" else _PROCESSES
    for parts, stages, pods in DIVISIONS:
        name = _name(parts, stages, pods)
        if parts * stages > devices:
            findings.skipped.append(f"{name}: it takes {parts * stages} devices, and {devices} are here")
            continue
        request = {"job": job.plain(), "parts": parts, "stages": stages, "pods": pods}
        try:
            env = _devices(job, 0, parts * stages // pods)
            found = call(job.python, "divided.rows", request, job.left, env=env)
        except Skipped as why:
            findings.skipped.append(f"{name}: {why}")
        except ChildFailed as error:
            findings.failed.append(f"{name}: {error}")
        else:
            findings.rows += found
            findings.checks += agreement.checks(job, [row for row in found if "mean exp|d|" in row])
    return findings


def rows(job: dict[str, Any], parts: int, stages: int, pods: int) -> list[Row]:
    """All rows of one division, in the process of the first pod."""
    from rl_trainer.rollout.engines.vllm import free_port

    told, name = Job(**job), _name(parts, stages, pods)
    progress(f"{name}: opening")
    divided: dict[str, Any] = {"tensor_parallel_size": parts, "pipeline_parallel_size": stages}
    with contextlib.ExitStack() as stack:
        if pods > 1:
            from rl_trainer.rollout.engines.vllm_needs import Pods

            port = free_port(_HOST)
            for rank in range(1, pods):
                request = {"job": job, "divided": divided, "pods": pods, "rank": rank, "port": port}
                env = _devices(told, rank, parts * stages // pods)
                stack.enter_context(Child(told.python, "divided.workers", request, env=env))
            divided = divided | {"pods": Pods(pods, 0, _HOST, _HOST, port)}
        engine = open_engine(told, "vllm", **divided)
        return [*decoding(told, name, engine), *agreement.of_engine(told, name, engine, ["blocks"])]


def workers(job: dict[str, Any], divided: dict[str, Any], pods: int, rank: int, port: int) -> None:
    """The workers of another pod, until this process is ended."""
    import torch

    from rl_trainer.rollout.engines.vllm import open_workers
    from rl_trainer.rollout.engines.vllm_needs import Pods

    told = Job(**job)
    options = vllm_options(told, **divided, pods=Pods(pods, rank, _HOST, _HOST, port))
    slots, dtype = max(SHAPES[told.shape].levels), getattr(torch, told.dtype)
    open_workers(told.model, slots, dtype, told.device, options).start_worker_monitor(inline=True)


def _name(parts: int, stages: int, pods: int) -> str:
    words = [f"{parts} parts"] * (parts > 1) + [f"{stages} stages"] * (stages > 1)
    return f"vllm, {' x '.join(words)}" + (f" in {pods} pods" if pods > 1 else "")


def _devices(job: Job, pod: int, each: int) -> dict[str, str]:
    """The environment in which a pod sees its own GPUs and no others."""
    if job.device == "cpu":
        return {}
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = said.split(",") if said else [str(gpu) for gpu in range(job.gpus)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[pod * each :][:each])}
