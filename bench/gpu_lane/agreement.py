"""Do engine and learner say the same of the same tokens? At the start, and after training, by each way of the weights.

Compared are log-probs of sampled tokens: the engine's as it sampled them, the learner's of the same sequences in its packed
forward pass. `exp|d|` is what a run holds against `weightSync.maxMismatch`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from table import Check, at_least

from gpu_lane.child import ChildFailed, call, progress
from gpu_lane.engine import engines, generate, open_engine
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.shapes import SHAPES
from gpu_lane.source import LearnerProcess, Way, sender_gpu, ways
from gpu_lane.workload import requests, sampled

if TYPE_CHECKING:
    from rl_trainer.rollout.engines.base import Engine
    from rl_trainer.trajectory import Trajectory

# Most that the mean of exp|d| may be: fp32 differs by rounding, bfloat16 by less than would move an importance weight.
BOUND = {"float32": 1 + 1e-4, "bfloat16": 1.03}
# Training must have moved log-probs by so many times what engine and learner differ by: else old weights would pass for new.
MOVED = 5.0
MOST_STEPS = 8


def measure(job: Job) -> Findings:
    """A row for each engine and each state of its weights."""
    findings = Findings()
    kinds, findings.skipped = engines()
    possible, impossible = ways(job)
    findings.skipped += impossible
    for kind in kinds:
        request = {"job": job.plain(), "kind": kind, "possible": possible}
        try:
            findings.rows += call(job.python, "agreement.rows", request, job.left)
        except Skipped as why:
            findings.skipped.append(f"engine {kind}: {why}")
        except ChildFailed as error:
            findings.failed.append(f"engine {kind}: {error}")
    findings.checks = checks(job, findings.rows)
    return findings


def checks(job: Job, rows: list[Row]) -> list[dict[str, Any]]:
    """Targets of these rows."""
    made: list[Check] = []
    bound = BOUND[job.dtype]
    for row in rows:
        where = f"engine {row['engine']}, {row['weights']}"
        found = row["mean exp|d|"]
        made.append(Check(f"{where}, mean exp|d|", found <= bound, f"{found:.6f}", f"<= {bound:g}"))
        if row["moved"] is not None:
            found = row["moved"] / row["mean |d|"] if row["mean |d|"] else math.inf
            made.append(at_least(f"{where}, moved by training / mean |d|", found, MOVED))
    return [asdict(check) for check in made]


def rows(job: dict[str, Any], kind: str, possible: list[Way]) -> list[Row]:
    """All rows of one engine."""
    told = Job(**job)
    if told.device == "cpu":
        import torch

        torch.set_num_threads(1)
    return of_engine(told, kind, open_engine(told, kind), possible)


def of_engine(told: Job, kind: str, engine: Engine, possible: list[Way]) -> list[Row]:
    """All rows of an engine that is open; `kind`: its name in the table."""
    shape = SHAPES[told.shape]
    made: list[Row] = []
    gpus = dict.fromkeys(sender_gpu(told, way) for way in possible)
    for gpu in gpus:
        with LearnerProcess(told, lora=shape.lora, learns=True, gpu=gpu) as learner:
            if not made:
                progress(f"{kind}: at the start")
                samples = _sample(told, engine)
                made.append(_row(kind, "at the start", samples, learner.score(samples)))
            for way in possible:
                if sender_gpu(told, way) != gpu:
                    continue
                progress(f"{kind}: after training, by {way}")
                samples = _sample(told, engine)
                before = learner.score(samples)
                moved, wanted = 0.0, 2 * MOVED * float(made[0]["mean |d|"])
                for _ in range(MOST_STEPS):
                    learner.update(samples)
                    moved = _mean(before, learner.score(samples))
                    if moved > wanted:
                        break
                engine.load_weights(learner.send(way, engine.version + 1), engine.version + 1)
                learner.done()
                samples = _sample(told, engine)
                row = _row(kind, f"after training, by {way}", samples, learner.score(samples))
                made.append(row | {"moved": moved})
    return made


def _sample(job: Job, engine: Engine) -> list[Trajectory]:
    shape = SHAPES[job.shape]
    asked = requests(job, shape.prompts * shape.group, version=engine.version)
    return sampled(asked, generate(engine, asked), shape.group)


def _mean(one: Sequence[Any], other: Sequence[Any]) -> float:
    import numpy as np

    return float(np.abs(np.concatenate(one) - np.concatenate(other)).mean())


def _row(kind: str, weights: str, samples: Sequence[Trajectory], scored: Sequence[Any]) -> Row:
    import numpy as np

    difference = np.abs(np.concatenate([sample.log_probs for sample in samples]) - np.concatenate(scored))
    return {
        "engine": kind,
        "weights": weights,
        "tokens": int(difference.size),
        "mean |d|": float(difference.mean()),
        "highest |d|": float(difference.max()),
        "mean exp|d|": float(np.exp(np.minimum(difference, np.log(10.0))).mean()),
        "moved": None,
    }
