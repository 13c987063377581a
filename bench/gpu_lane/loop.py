"""Whole runs: sampling, learning and new weights, step after step.

`rltrain run` is what users start; it needs a GPU for the learner and one for the sampler. `in turns` are the same parts
on one GPU, as TRL's colocated mode has them: an engine and a learner, whose weights the engine takes over by CUDA IPC.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpu_lane.child import ChildFailed, call, progress
from gpu_lane.engine import engines, generate, open_engine
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.machine import synchronize
from gpu_lane.memory import Peak
from gpu_lane.shapes import SHAPES, Shape, context
from gpu_lane.source import LearnerProcess
from gpu_lane.workload import document, requests, sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPTS = "prompts.jsonl"
TURNS = "in turns"
_STOP_SECONDS = 30.0


def measure(job: Job) -> Findings:
    """A row for each way and engine."""
    findings = Findings()
    write_prompts(job)
    kinds, findings.skipped = engines()
    for kind in kinds:
        for name in ("turns", "command"):
            what = TURNS if name == "turns" else "rltrain run"
            try:
                findings.rows.append(
                    call(job.python, f"loop.{name}", {"job": job.plain(), "kind": kind}, job.left)
                )
            except Skipped as why:
                findings.skipped.append(f"{what}, engine {kind}: {why}")
            except ChildFailed as error:
                findings.failed.append(f"{what}, engine {kind}: {error}")
    return findings


def write_prompts(job: Job) -> Path:
    """Sums behind a line of noise that makes prompts as long as the shape's; the answer is the sum over and over."""
    shape = SHAPES[job.shape]
    target = Path(job.scratch) / PROMPTS
    generator = random.Random(0)
    with target.open("w") as file:
        for _ in range(64 * shape.prompts):
            a, b = generator.randrange(10, 100), generator.randrange(10, 100)
            noise = "".join(generator.choice("abcdefgh ") for _ in range(shape.prompt - 6))
            file.write(json.dumps({"prompt": f"{noise}{a}+{b}=", "answer": str(a + b) * 16}) + "\n")
    return target


def turns(job: dict[str, Any], kind: str) -> Row:
    """Steps of sampling, one optimizer step and new weights, one after the other."""
    told = Job(**job)
    shape = SHAPES[told.shape]
    if told.device == "cpu":
        import torch

        torch.set_num_threads(1)
    peak = Peak(told)
    engine = open_engine(told, kind)
    seconds: list[float] = []
    parts: dict[str, list[float]] = {"sampling": [], "learning": [], "weights": []}
    tokens: list[int] = []
    with LearnerProcess(told, lora=shape.lora, learns=True) as learner:
        for step in range(shape.steps + 1):
            progress(f"{TURNS}, {kind}: step {step + 1} of {shape.steps + 1}")
            marks = [time.perf_counter()]
            asked = requests(told, shape.prompts * shape.group, version=engine.version)
            samples = sampled(asked, generate(engine, asked), shape.group)
            marks.append(time.perf_counter())
            learner.update(samples)
            marks.append(time.perf_counter())
            engine.load_weights(learner.send("same device", engine.version + 1), engine.version + 1)
            learner.done()
            synchronize(told)
            marks.append(time.perf_counter())
            if step:  # the first pays for what is made at the first use
                seconds.append(marks[-1] - marks[0])
                tokens.append(sum(int(sample.mask.sum()) for sample in samples))
                for name, start, end in zip(parts, marks, marks[1:], strict=False):
                    parts[name].append(end - start)
        highest = peak.bytes(), learner.peak()
    return {
        "run": TURNS,
        "engine": kind,
        "completion tok/s": sum(tokens) / sum(seconds),
        "s/step": statistics.median(seconds),
        **{f"{name}, s": statistics.median(found) for name, found in parts.items()},
        "engine, GB": highest[0] / 1e9,
        "learner, GB": highest[1] / 1e9,
    }


def command(job: dict[str, Any], kind: str) -> Row:
    """`rltrain run` with the learner on its own devices; Skipped where there are too few, or no Ray."""
    import importlib.util

    told = Job(**job)
    shape = SHAPES[told.shape]
    if told.gpus == 1:
        raise Skipped("it needs a GPU for the learner and one for the sampler, and one is here")
    if importlib.util.find_spec("ray") is None:
        raise Skipped("Ray is not installed here")
    made = document(told, lora=shape.lora, learner=_learner(told, shape))
    made["spec"]["sampler"] |= _sampler(told, kind, shape)
    folder = Path(told.scratch) / f"run-{kind}"
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(made))
    progress(f"rltrain run, {kind}")
    _carry_out(["run", str(file), "--out", str(folder), "--overwrite"], told)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "event" not in line]
    seconds = steps[-1]["time"] - steps[0]["time"]
    return {
        "run": "rltrain run",
        "engine": kind,
        "completion tok/s": sum(step["completion_tokens"] for step in steps[1:]) / seconds,
        "s/step": seconds / (len(steps) - 1),
    }


def _learner(job: Job, shape: Shape) -> dict[str, Any]:
    """Fields of the learner: all devices but one, which is the sampler's."""
    ranks = 1 if shape.lora or job.device == "cpu" else max(1, job.gpus - 1)
    return {"replicas": ranks, "parallelism": "fsdp2" if ranks > 1 else "ddp"}


def _sampler(job: Job, kind: str, shape: Shape) -> dict[str, Any]:
    fields: dict[str, Any] = {"engine": kind}
    if kind == "vllm":
        fields["maxModelLen"] = context(shape)
    return fields


def _carry_out(arguments: Sequence[str], job: Job) -> None:
    """The command, with this interpreter; ChildFailed when it ends with another status than 0, or not in time."""
    process = subprocess.Popen(
        [job.python, "-m", "rl_cli.main", *arguments],
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    try:
        status = process.wait(job.deadline - _STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"rltrain run was not over within {job.deadline - _STOP_SECONDS:.0f} s") from None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # a run that is told to stop ends what it has started
            try:
                process.wait(_STOP_SECONDS / 2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if status:
        raise ChildFailed(f"rltrain run ended with status {status}")
