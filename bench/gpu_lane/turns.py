"""A device that changes hands: what learner and engines give back of its memory, how fast, and that the same goes on after.

Each is in a process of its own and has the device alone. The learner is offloaded between two steps, an engine with
sequences in flight: held against one another are the memory that the device has free before and after (of processes on CPUs
what is resident), every bit of the learner's weights and moments, and what the engine samples with and without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from table import Check, at_least, at_most
from worker_head import resident

from gpu_lane.agreement import BOUND
from gpu_lane.child import ChildFailed, call, progress
from gpu_lane.engine import engines, generate, open_engine
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.learner import one_gpu
from gpu_lane.machine import synchronize
from gpu_lane.memory import SMALL_MODEL
from gpu_lane.shapes import SHAPES
from gpu_lane.workload import requests, run_spec, trajectories

if TYPE_CHECKING:
    from rl_trainer.rollout.engines.base import GenerationResult

GIVEN_BACK = 0.90
"""Share of what a role keeps on its device that must be free when another has it."""
# Of an engine's steps before it is offloaded: prompts are read, and no sequence has ended.
_STEPS = 4


def measure(job: Job) -> Findings:
    """A row for the learner and for each engine."""
    findings = Findings()
    kinds, findings.skipped = engines()
    for who, function in (("learner", "turns.learner"), *((kind, "turns.engine") for kind in kinds)):
        progress(who)
        request = {"job": job.plain()} | ({} if who == "learner" else {"kind": who})
        try:
            findings.rows.append(call(job.python, function, request, job.left, env=one_gpu(job, 0)))
        except Skipped as why:
            findings.skipped.append(f"{who}: {why}")
        except ChildFailed as error:
            findings.failed.append(f"{who}: {error}")
    findings.checks = [asdict(check) for check in _checks(job, findings.rows)]
    return findings


def learner(job: dict[str, Any]) -> Row:
    """Its row: `same` is whether every number came back."""
    import torch

    from rl_trainer.algorithms.denominators import LossDenominators
    from rl_trainer.learner.rank import Learner, MiniBatch

    told = Job(**job)
    shape = SHAPES[told.shape]
    if told.device == "cpu":
        torch.set_num_threads(1)
    trained = Learner(told.model, run_spec(told, lora=shape.lora), device=told.device)
    trained.start_reinforcement()
    samples = trajectories(shape)
    lengths = [int(sample.mask.sum()) for sample in samples]
    batch = [MiniBatch(samples, LossDenominators.from_lengths(lengths))]
    trained.update(batch)
    kept = {
        **{name: value.detach().cpu().clone() for name, value in trained.model.named_parameters()},
        **{name: value.cpu().clone() for name, value in trained.training.optimizer.state().items()},
    }
    row = _turn(told, "learner", trained.device_bytes, trained.offload, trained.onload)
    now = dict(trained.model.named_parameters()) | dict(trained.training.optimizer.state())
    row["same"] = all(torch.equal(value, now[name].detach().cpu()) for name, value in kept.items())
    trained.update(batch)  # it goes on
    return row


def engine(job: dict[str, Any], kind: str) -> Row:
    """Its row: `same` is whether it samples what it samples without, bit by bit; of vLLM, which computes keys and values
    anew, the mean of exp|d| of log-probs for as long as tokens are the same."""
    import torch

    told = Job(**job)
    shape = SHAPES[told.shape]
    if told.device == "cpu":
        torch.set_num_threads(1)
    opened = open_engine(told, kind, sleeps=True)
    asked = requests(told, min(max(shape.levels), shape.group * shape.prompts))
    expected = generate(opened, asked)
    opened.add(asked)
    for _ in range(_STEPS):
        opened.step()
    # vLLM does not say what it keeps: all that is in use.
    held = opened.device_bytes or _used(told)
    row = _turn(told, f"engine {kind}", held, opened.offload, opened.onload)
    found = generate(opened, [])
    if kind == "torch":
        row["same"] = all(_same(found[name], one) for name, one in expected.items())
    else:
        row["mean exp|d|"] = _difference(found, expected)
    return row


def _turn(job: Job, who: str, held: int, offload: Callable[[], int], onload: Callable[[], int]) -> Row:
    """Gives the device back and takes it again; seconds, and what the device had free."""
    synchronize(job)
    before, start = _used(job), time.perf_counter()
    moved = offload()
    synchronize(job)
    away, seconds = _used(job), time.perf_counter() - start
    if not moved:
        raise Skipped("this build cannot give its memory back")
    start = time.perf_counter()
    onload()
    synchronize(job)
    back = time.perf_counter() - start
    return {
        "role": who,
        "held, GB": held / 1e9,
        "moved, GB": moved / 1e9,
        "given back, GB": (before - away) / 1e9,
        "given back / held": (before - away) / held,
        "offload, s": seconds,
        "onload, s": back,
        "both, GB/s": 2 * moved / (seconds + back) / 1e9,
    }


def _used(job: Job) -> int:
    """Bytes of the device that are not free; of a process on CPUs its own that are resident."""
    if job.device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    return resident("VmRSS")


def _same(one: GenerationResult, other: GenerationResult) -> bool:
    return one.tokens.tolist() == other.tokens.tolist() and one.logprobs.tolist() == other.logprobs.tolist()


def _difference(found: Mapping[Any, GenerationResult], expected: Mapping[Any, GenerationResult]) -> float:
    import numpy as np

    apart: list[float] = []
    for name, one in expected.items():
        other = found[name]
        length = min(len(one.tokens), len(other.tokens))
        unlike = np.flatnonzero(one.tokens[:length] != other.tokens[:length])
        alike = int(unlike[0]) if len(unlike) else length
        apart += np.abs(one.logprobs[:alike] - other.logprobs[:alike]).tolist()
    return float(np.mean(np.exp(apart)))


def _checks(job: Job, rows: list[Row]) -> Iterator[Check]:
    for row in rows:
        if "same" in row:
            yield Check(f"{row['role']}, the same afterwards", row["same"], str(row["same"]), "True")
        else:
            yield at_most(
                f"{row['role']}, mean exp|d| of the same tokens", row["mean exp|d|"], BOUND[job.dtype]
            )
        if row["held, GB"] * 1e9 >= 4 * SMALL_MODEL:
            yield at_least(f"{row['role']}, given back / held", row["given back / held"], GIVEN_BACK)
