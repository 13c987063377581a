"""`summary.json`: a run in one small object, for scripts, dashboards and the top of the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rl_trainer.observe.metrics import (
    METRICS_FILE,
    PARTS,
    StepRecord,
    heldout_curve,
    read_events,
    read_metrics,
)
from rl_trainer.storage.files import dump_json, finite, write_atomic

SUMMARY_FILE = "summary.json"


def summarize(
    records: Sequence[StepRecord],
    heldout: Sequence[tuple[int, float]],
    *,
    name: str,
    seed: int,
    stop_reason: str,
    resumed_from: int | None = None,
    wall_seconds: float | None = None,
) -> dict[str, Any]:
    """Return the summary of a run from its step records and its (step, held-out score) pairs.

    Keys: `name`, `seed`, `stop_reason`, `steps` (number of the last step), `heldout_start`, `heldout_end`,
    `best_heldout`, `best_heldout_step` and `heldout_curve` (exact match on prompts never trained on: before
    the first step of reinforcement learning, at the end, at best; null without evaluation), `reward_curve`
    (mean reward of each step), `completion_tokens_per_second` and `samples_per_second` (over the wall time of
    all steps), `completion_tokens`, `wall_seconds` (given, or the sum over steps), `time_breakdown` (seconds
    by part of the loop), `groups_trained`, `groups_dropped` (by reason), `zero_variance_groups`,
    `skipped_steps`, `max_staleness_seen` (weight versions), `resumed_from` (step of the checkpoint, null for
    a run in one go). What was not measured is null.
    """
    step_seconds = _total(record.wall_seconds for record in records)
    tokens = sum(record.completion_tokens for record in records)
    samples = _total(record.samples_per_second * record.wall_seconds for record in records)
    best = max(heldout, key=lambda pair: pair[1], default=None)
    last = records[-1] if records else None
    summary: dict[str, Any] = {
        "name": name,
        "seed": seed,
        "stop_reason": stop_reason,
        "steps": last.step if last else 0,
        "heldout_start": heldout[0][1] if heldout else None,
        "heldout_end": heldout[-1][1] if heldout else None,
        "best_heldout": best[1] if best else None,
        "best_heldout_step": best[0] if best else None,
        "heldout_curve": [list(pair) for pair in heldout],
        "reward_curve": [record.reward_mean for record in records],
        "completion_tokens_per_second": tokens / step_seconds if step_seconds else 0.0,
        "samples_per_second": samples / step_seconds if step_seconds else 0.0,
        "completion_tokens": tokens,
        "wall_seconds": step_seconds if wall_seconds is None else wall_seconds,
        "time_breakdown": {
            part: _total(getattr(record, f"time_{part}") for record in records) for part in PARTS
        },
        "groups_trained": last.groups_trained if last else 0,
        "groups_dropped": dict(last.groups_dropped) if last else {},
        "zero_variance_groups": sum(record.zero_variance_groups for record in records),
        "skipped_steps": last.skipped_steps if last else 0,
        "max_staleness_seen": max(
            (r.staleness_max for r in records if math.isfinite(r.staleness_max)), default=0
        ),
        "resumed_from": resumed_from,
    }
    return {key: finite(value) for key, value in summary.items()}


def write_summary(
    run_folder: Path | str,
    *,
    name: str,
    seed: int,
    stop_reason: str,
    resumed_from: int | None = None,
    wall_seconds: float | None = None,
) -> dict[str, Any]:
    """Write `summary.json` of a run folder from its `metrics.jsonl`, and return it (see `summarize`).

    `resumed_from` may be left out: the `resumed` events of the metrics tell it (the last one counts).

    Raises:
        RLTrainError: the metrics are broken or the file cannot be written.
    """
    folder = Path(run_folder)
    metrics = folder / METRICS_FILE
    resumed = [event["step"] for event in read_events(metrics, "resumed")]
    summary = summarize(
        read_metrics(metrics),
        heldout_curve(metrics),
        name=name,
        seed=seed,
        stop_reason=stop_reason,
        resumed_from=resumed[-1] if resumed_from is None and resumed else resumed_from,
        wall_seconds=wall_seconds,
    )
    write_atomic(folder / SUMMARY_FILE, dump_json(summary, indent=2) + "\n")
    return summary


def _total(values: Iterable[float]) -> float:
    return math.fsum(value for value in values if math.isfinite(value))
