"""Engines: tokens per second by sequences in flight, and how long new weights stop them, by each way the weights can come.

Engines are `torch`, our own, and `vllm` where it is installed; each is in a process of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpu_lane.child import ChildFailed, call, progress
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.machine import synchronize
from gpu_lane.memory import Peak
from gpu_lane.shapes import SHAPES, context
from gpu_lane.source import LearnerProcess, Way, sender_gpu, ways
from gpu_lane.workload import requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Literal

    from rl_trainer.rollout.engines.base import Engine, GenerationRequest, GenerationResult
    from rl_trainer.rollout.engines.vllm_needs import VllmOptions

KINDS = ("torch", "vllm")


def engines() -> tuple[list[str], list[str]]:
    """Those that are installed here, and sentences on the others."""
    from rl_trainer.rollout.engines.vllm_needs import is_installed

    if is_installed():
        return list(KINDS), []
    return ["torch"], ["engine vllm: vLLM is not installed here"]


def vllm_options(job: Job, **divided: Any) -> VllmOptions:
    """Those of the job's engines; `divided`: over devices and pods."""
    from rl_trainer.rollout.engines.vllm_needs import VllmOptions

    shape = SHAPES[job.shape]
    return VllmOptions(
        gpu_memory_utilization=shape.vllm_share, max_model_len=context(shape), seed=0, **divided
    )


def open_engine(job: Job, kind: str, **divided: Any) -> Engine:
    """The engine for the job's model, with room for its longest sequence; Skipped where it does not run on this device.
    `divided`: see `vllm_options`."""
    import torch

    from rl_api.errors import InvalidConfig
    from rl_trainer.rollout.engines.create import create_engine

    shape = SHAPES[job.shape]
    chosen: Literal["torch", "vllm"] = "vllm" if kind == "vllm" else "torch"
    try:
        return create_engine(
            job.model,
            slots=max(shape.levels),
            kind=chosen,
            dtype=getattr(torch, job.dtype),
            device=job.device,
            options=vllm_options(job, **divided),
        )
    except InvalidConfig as why:
        raise Skipped(str(why)) from why


def generate(engine: Engine, asked: list[GenerationRequest]) -> Mapping[Any, GenerationResult]:
    """The results of all requests, by id."""
    engine.add(asked)
    found: dict[Any, GenerationResult] = {}
    while engine.active or engine.waiting:
        found |= {result.id: result for result in engine.step()}
    return found


def measure(job: Job) -> Findings:
    """Rows of decoding and of weights; `what` says which."""
    findings = Findings()
    kinds, findings.skipped = engines()
    possible, why = ways(job)
    findings.skipped += why
    for kind in kinds:
        try:
            findings.rows += call(
                job.python,
                "engine.rows",
                {"job": job.plain(), "kind": kind, "possible": possible},
                job.left,
            )
        except Skipped as skipped:
            findings.skipped.append(f"engine {kind}: {skipped}")
        except ChildFailed as error:
            findings.failed.append(f"engine {kind}: {error}")
    return findings


def rows(job: dict[str, Any], kind: str, possible: list[Way]) -> list[Row]:
    """All rows of one engine."""
    told = Job(**job)
    if told.device == "cpu":
        import torch

        torch.set_num_threads(1)
    progress(f"{kind}: opening")
    peak = Peak(told)
    start = time.perf_counter()
    engine = open_engine(told, kind)
    opened = time.perf_counter() - start
    made = list(decoding(told, kind, engine))
    for row in made:
        row |= {"opening, s": opened, "highest, GB": peak.bytes() / 1e9}
    for gpu in dict.fromkeys(sender_gpu(told, way) for way in possible):
        with LearnerProcess(told, lora=False, learns=False, gpu=gpu) as learner:
            for way in possible:
                if sender_gpu(told, way) == gpu:
                    progress(f"{kind}: weights by {way}")
                    made.append(_weights(told, kind, engine, learner, way))
    return made


def decoding(job: Job, kind: str, engine: Engine) -> Iterator[Row]:
    """Rows of tokens per second."""
    generate(engine, requests(job, 1, version=1000))  # what is made at the first use
    for level in SHAPES[job.shape].levels:
        progress(f"{kind}: {level} sequences in flight")
        asked = requests(job, level, version=level)
        synchronize(job)
        start = time.perf_counter()
        found = generate(engine, asked)
        synchronize(job)
        seconds = time.perf_counter() - start
        tokens = sum(len(result.tokens) for result in found.values())
        yield {
            "what": "decoding",
            "engine": kind,
            "in flight": level,
            "tok/s": tokens / seconds,
            "tok/s of each": tokens / seconds / level,
        }


def _weights(job: Job, kind: str, engine: Engine, learner: LearnerProcess, way: Way) -> Row:
    """One version by this way: the learner's part, which overlaps with sampling in a run, and the engine's pause."""
    seconds, pauses, size = [], [], 0
    for _ in range(2):  # the first pays for memory and connections
        start = time.perf_counter()
        tensors = learner.send(way, engine.version + 1)
        there = time.perf_counter()
        engine.load_weights(tensors, engine.version + 1)
        synchronize(job)
        end = time.perf_counter()
        size = sum(value.numel() * value.element_size() for value in tensors.values())
        del tensors
        learner.done()
        seconds.append(end - start)
        pauses.append(end - there)
    return {
        "what": "weights",
        "engine": kind,
        "by": way,
        "GB": size / 1e9,
        "s": seconds[-1],
        "GB/s": size / seconds[-1] / 1e9,
        "pause, s": pauses[-1],
    }
