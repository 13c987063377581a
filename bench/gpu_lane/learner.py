"""The learner on 1 to n devices: whole on one, divided by FSDP2 over more; with LoRA where the whole does not fit.

Ranks are `rl_trainer.learner.rank.Learner` in processes of their own, which see one GPU each, as the learner's actors are.
Held against each other are the losses and gradients of the first step, and the memory against what `rltrain plan` reckons.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from table import Check, at_most

from gpu_lane.child import Child, ChildFailed, all_answers, progress
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.machine import product_rate, synchronize
from gpu_lane.memory import OVER_PLAN, SMALL_MODEL, Peak, device_memory
from gpu_lane.shapes import SHAPES
from gpu_lane.workload import run_spec, trajectories

if TYPE_CHECKING:
    from rl_api.sizes.learner import LearnerLayout
    from rl_api.sizes.memory import Device, Parts
    from rl_api.sizes.shape import ModelShape

# Of a step's loss and gradient norm, between ways to divide the same model.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Case:
    """A way to learn: over `ranks`, of all weights or of adapters."""

    ranks: int
    lora: bool

    @property
    def name(self) -> str:
        """For tables."""
        what = "LoRA" if self.lora else "all weights"
        return f"{what}, whole" if self.ranks == 1 else f"{what}, fsdp2 over {self.ranks}"


def cases(job: Job) -> Iterator[Case]:
    """All weights over 1, 2, 4, ... devices and over all of them; LoRA on one. On CPUs over one and two."""
    most = job.gpus or 2
    ranks = 1
    while ranks < most:
        yield Case(ranks, False)
        ranks *= 2
    yield Case(most, False)
    yield Case(1, True)


def measure(job: Job) -> Findings:
    """A row for each case that fits."""
    findings = Findings()
    for case in cases(job):
        progress(case.name)
        try:
            findings.rows.append(_row(case, _run(job, case)))
        except Skipped as why:
            findings.skipped.append(f"{case.name}: {why}")
        except ChildFailed as error:
            findings.failed.append(f"{case.name}: {error}")
    findings.checks += [asdict(check) for check in _checks(job, findings.rows)]
    return findings


def _run(job: Job, case: Case) -> list[dict[str, Any]]:
    store = Path(job.scratch) / f"store-{case.ranks}-{time.monotonic_ns()}"
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(
                    job.python,
                    "learner.rank",
                    {"job": job.plain(), "case": asdict(case), "rank": rank, "store": str(store)},
                    env=one_gpu(job, rank),
                )
            )
            for rank in range(case.ranks)
        ]
        return all_answers(children, job.left)


def one_gpu(job: Job, index: int) -> dict[str, str]:
    """The environment of a process that sees the one GPU with this index; on CPUs nothing is said."""
    import os

    if job.device != "cuda":
        return {}
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return {"CUDA_VISIBLE_DEVICES": visible[index] if visible else str(index)}


def rank(job: dict[str, Any], case: dict[str, Any], rank: int, store: str) -> dict[str, Any]:
    """What one rank measures: seconds and loss of each step, its highest memory, and the estimate of that."""
    import torch
    import torch.distributed as dist

    from rl_trainer.algorithms.denominators import LossDenominators
    from rl_trainer.learner.packing import split_groups
    from rl_trainer.learner.rank import Learner, MiniBatch

    told, chosen = Job(**job), Case(**case)
    shape = SHAPES[told.shape]
    planned = _fitting(told, chosen)
    if told.device == "cpu":
        torch.set_num_threads(1)
    if chosen.ranks > 1:
        dist.init_process_group(
            "nccl" if told.device == "cuda" else "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=chosen.ranks,
            timeout=timedelta(seconds=told.deadline),
        )
    peak = Peak(told)
    spec = _spec(told, chosen)
    learner = Learner(told.model, spec, rank=rank, ranks=chosen.ranks, device=told.device)
    learner.start_reinforcement()
    samples = trajectories(shape)
    trained = [int(sample.mask.sum()) for sample in samples]
    groups = [index // shape.group for index in range(len(samples))]
    share = split_groups([len(sample.tokens) for sample in samples], groups, chosen.ranks)[rank]
    batch = [MiniBatch([samples[index] for index in share], LossDenominators.from_lengths(trained))]
    seconds, losses, norms = [], [], []
    for _ in range(shape.steps + 1):
        start = time.perf_counter()
        result = learner.update(batch)
        synchronize(told)
        seconds.append(time.perf_counter() - start)
        losses.append(result.metrics["loss"])
        norms.append(result.grad_norm)
    highest = peak.bytes()
    return {
        "seconds": seconds[1:],
        "losses": losses,
        "norms": norms,
        "bytes": highest,
        "planned": planned.total - planned.overhead,
        "trained": sum(trained),
        "tokens": sum(len(sample.tokens) for sample in samples),
        "flop": _operations(told, chosen, sum(trained) + shape.prompts * shape.prompt),
        "product": product_rate(told) * 1e12 if rank == 0 else 0.0,
    }


def _spec(job: Job, case: Case) -> Any:
    parallel = {"replicas": case.ranks, "parallelism": "fsdp2" if case.ranks > 1 else "ddp"}
    return run_spec(job, lora=case.lora, learner=parallel)


def _shape(job: Job) -> ModelShape:
    from rl_api.sizes.shape import model_shape

    return model_shape(json.loads((job.model / "config.json").read_text()))


def _operations(job: Job, case: Case, tokens: int) -> int:
    """Of forward and backward pass, each token once, whatever is computed again (Kaplan et al. 2020, arXiv 2001.08361,
    section 2.1): 2 per parameter forward, 2 for the gradients of activations, and 2 for those of weights that learn."""
    return (4 if case.lora else 6) * _shape(job).parameters * tokens


def plan(job: Job, case: Case) -> tuple[ModelShape, LearnerLayout]:
    """What `rltrain plan` reckons with."""
    from rl_api.sizes.run_plan import Place, learner_layout

    shape = _shape(job)
    return shape, learner_layout(_spec(job, case), shape, Place(case.ranks, 0, None))


def _fitting(job: Job, case: Case) -> Parts:
    """The estimate of a rank's memory; Skipped where the device has less."""
    from rl_api.sizes.fit import learner_misfit
    from rl_api.sizes.learner import learner_parts
    from rl_api.sizes.memory import Device

    shape, layout = plan(job, case)
    device: Device = Device(device_memory(job), job.device == "cuda")
    if misfit := learner_misfit(shape, layout, device):
        raise Skipped(misfit)
    return learner_parts(shape, layout, device)


def _row(case: Case, found: list[dict[str, Any]]) -> Row:
    """The slowest rank's step and the fullest rank's memory."""
    seconds = max(statistics.median(one["seconds"]) for one in found)
    first = found[0]
    highest = max(one["bytes"] for one in found)
    rate = first["flop"] / seconds
    return {
        "learner": case.name,
        "s/step": seconds,
        "trained tok/s": first["trained"] / seconds,
        "all tok/s": first["tokens"] / seconds,
        "TFLOP/s of each": rate / case.ranks / 1e12,
        "share of a bare product": rate / case.ranks / first["product"],
        "highest, GB": highest / 1e9,
        "planned, GB": first["planned"] / 1e9,
        "highest / planned": highest / first["planned"],
        "first loss": first["losses"][0],
        "first gradient norm": first["norms"][0],
    }


def _checks(job: Job, rows: list[Row]) -> Iterator[Check]:
    whole = [row for row in rows if not row["learner"].startswith("LoRA")]
    for row in whole[1:]:
        for name in ("first loss", "first gradient norm"):
            found, wanted = row[name], whole[0][name]
            difference = abs(found - wanted) / max(abs(wanted), 1e-3)
            bound = _TOLERANCE[job.dtype]
            yield Check(
                f"{row['learner']} against {whole[0]['learner']}, {name}",
                difference <= bound,
                f"{difference:.1e}",
                f"<= {bound:g}",
            )
    if rows and _shape(job).parameters >= SMALL_MODEL:
        for row in rows:
            yield at_most(f"{row['learner']}, memory / plan", row["highest / planned"], OVER_PLAN)
