"""A model that scores, on one device: texts/s, memory against `rltrain plan`, and its values against those on CPU cores.

The model is `rl_trainer.rollout.reward_model.RewardModel` as a run's worker opens it, in float32 whatever `--dtype` says.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from table import Check, at_least, at_most

from gpu_lane.child import progress
from gpu_lane.job import Findings, Job, Row, Skipped
from gpu_lane.memory import OVER_PLAN, SMALL_MODEL, Peak, device_memory
from gpu_lane.shapes import SHAPES

if TYPE_CHECKING:
    from rl_api.task import RewardModelSpec
    from rl_trainer.rollout.reward_model import RewardModel
    from rl_trainer.tasks.scoring import Completion

BATCHES = (1, 16)
"""Texts of a pass."""
COMPARED = 4
"""Texts that cores score as well, one by one."""
# Values differ by rounding, and texts by much more: else a model that says the same of all would pass.
_DIFFERENCE, _SPREAD = 1e-3, 100.0


def measure(job: Job) -> Findings:
    """A row for each batch that fits."""
    import torch

    from rl_trainer.rollout.reward_model import RewardModel

    findings = Findings()
    if job.device == "cpu":
        torch.set_num_threads(1)
    for batch in BATCHES:
        try:
            findings.rows.append(_row(job, batch))
        except Skipped as why:
            findings.skipped.append(f"{batch} texts at once: {why}")
    if findings.rows:
        progress("on cores")
        alone = _scored(RewardModel(job.model, _spec(1)), _texts(job, COMPARED))
        findings.rows = [row | _against(row.pop("values"), alone) for row in findings.rows]
    findings.checks = [asdict(check) for check in _checks(job, findings.rows)]
    return findings


def _row(job: Job, batch: int) -> Row:
    from rl_api.sizes.memory import Device
    from rl_api.sizes.scoring import ScoringLayout, scoring_misfit, scoring_parts
    from rl_api.sizes.shape import model_shape
    from rl_trainer.rollout.reward_model import RewardModel

    shape, work = model_shape(json.loads((job.model / "config.json").read_text())), SHAPES[job.shape]
    layout = ScoringLayout.of(_spec(batch), shape, work.prompt + work.longest)
    device = Device(device_memory(job), job.device == "cuda")
    if misfit := scoring_misfit(shape, layout, device):
        raise Skipped(misfit)
    progress(f"{batch} texts at once")
    peak, texts = Peak(job), _texts(job, max(batch, COMPARED))
    model = RewardModel(job.model, _spec(batch), job.device)
    seconds = []
    for _ in range(work.steps + 1):
        start = time.perf_counter()
        values = _scored(model, texts)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    planned = scoring_parts(shape, layout, device)
    highest, expected = peak.bytes(), planned.total - planned.overhead
    return {
        "texts at once": batch,
        "tokens of each": layout.length,
        "texts/s": len(texts) / median,
        "tok/s": len(texts) * layout.length / median,
        "highest, GB": highest / 1e9,
        "planned, GB": expected / 1e9,
        "highest / planned": highest / expected,
        "values": values[:COMPARED],
    }


def _spec(batch: int) -> RewardModelSpec:
    from rl_api.task import RewardModelSpec

    judge = {"kind": "judge", "answers": ["1", "0"], "template": "{prompt}{completion}", "batchSize": batch}
    return RewardModelSpec.model_validate({"source": "written here", **judge})


def _texts(job: Job, count: int) -> list[Completion]:
    """As long as those of a run; a token is a character."""
    from rl_trainer.tasks.scoring import Completion

    shape = SHAPES[job.shape]
    return [
        Completion(index, "7" * shape.prompt, None, "", f"{index:0{shape.longest}d}")
        for index in range(count)
    ]


def _scored(model: RewardModel, texts: Sequence[Completion]) -> list[float]:
    found: dict[int, Any] = {}
    for values in model.passes(texts):
        found |= values
    return [float(found[place]) for place in range(len(texts))]


def _against(values: Sequence[float], alone: Sequence[float]) -> Row:
    """The same texts on the device, with others in a pass, and on cores each alone."""
    return {
        "highest |d| from cores": max(abs(one - other) for one, other in zip(values, alone, strict=True)),
        "spread of values": statistics.pstdev(alone),
    }


def _checks(job: Job, rows: Sequence[Row]) -> Iterator[Check]:
    for row in rows:
        where = f"{row['texts at once']} texts at once"
        found, spread = row["highest |d| from cores"], row["spread of values"]
        yield Check(f"{where}, |d| from cores", found <= _DIFFERENCE, f"{found:.1e}", f"<= {_DIFFERENCE:g}")
        yield at_least(f"{where}, spread / |d|", spread / max(found, 1e-9), _SPREAD)
        if row["planned, GB"] * 1e9 >= 4 * SMALL_MODEL:
            yield at_most(f"{where}, memory / plan", row["highest / planned"], OVER_PLAN)
