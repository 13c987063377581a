"""The run's last reading, as Prometheus sees it: what `/metrics` answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rl_api.progress import CheckpointStatus, Progress
from rl_trainer.observe.metrics import GAUGES, PARTS, StepRecord


class Reading(Collector):
    """Progress, newest checkpoint and last step. Metrics are made when asked for: nothing to keep in step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.progress = Progress()
        self.checkpoint: CheckpointStatus | None = None
        self._record: StepRecord | None = None
        self._tokens = 0
        self._lock = threading.Lock()

    def update(self, progress: Progress, record: StepRecord | None) -> None:
        """Take in newer progress; `record` when a step was finished since."""
        with self._lock:
            self.progress = progress
            if record is not None:
                self._record = record
                self._tokens += record.completion_tokens

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per known number; one that is not known is left out."""
        with self._lock:
            progress, record, tokens = self.progress, self._record, self._tokens
        gauges = [
            ("step", "Training steps done", progress.step),
            ("max_steps", "Training steps at most", progress.max_steps),
            ("reward_mean", "Mean reward of the last step", progress.reward),
            (
                "heldout_score",
                "Share of exact matches in the last evaluation, 0 to 1",
                progress.heldout_score,
            ),
            ("tokens_per_second", "Completion tokens per second", progress.tokens_per_second),
            ("buffer_fill_ratio", "Groups in the buffer over its capacity", progress.buffer_fill),
            ("staleness_mean", "Weight versions the last step's groups were behind", progress.staleness),
            ("sampler_busy_ratio", "Share of time that samplers worked, last steps", progress.sampler_busy),
            ("learner_busy_ratio", "Share of time that learners trained, last steps", progress.learner_busy),
            ("eta_seconds", "Seconds to the last step at the present pace", progress.eta_seconds),
        ]
        if self.checkpoint is not None:
            gauges += [
                ("checkpoint_step", "Training steps the newest checkpoint holds", self.checkpoint.step)
            ]
        if record is not None:
            gauges += [(name, text, getattr(record, name)) for name, text in GAUGES.items()]
        for name, text, value in gauges:
            if value is not None and math.isfinite(value):
                yield self._family(GaugeMetricFamily, name, text, {"": value})
        if record is None:
            return
        seconds = {part: getattr(record, f"time_{part}") for part in PARTS}
        known = {part: value for part, value in seconds.items() if math.isfinite(value)}
        text = "Seconds of the last step by part"
        yield self._family(GaugeMetricFamily, "step_part_seconds", text, known, "part")
        for name, text, count in (
            ("completion_tokens", "Completion tokens trained on since the driver started", tokens),
            ("groups_trained", "Groups trained on since the start of the run", record.groups_trained),
            ("skipped_steps", "Steps skipped because the loss was not a number", record.skipped_steps),
        ):
            yield self._family(CounterMetricFamily, name, text, {"": count})
        text = "Groups dropped since the start of the run"
        yield self._family(CounterMetricFamily, "groups_dropped", text, record.groups_dropped, "reason")

    def _family(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        values: Mapping[str, float],
        label: str = "",
    ) -> Metric:
        """A metric of this run: a value by `label`, or without one a single value."""
        family = kind(f"rltrain_{name}", text, labels=["run", label] if label else ["run"])
        for key, value in values.items():
            family.add_metric([self.name, key] if label else [self.name], value)
        return family
