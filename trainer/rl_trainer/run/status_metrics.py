"""The run's last reading, as Prometheus sees it: what `/metrics` answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rl_api.progress import CheckpointStatus, Progress
from rl_trainer.observe.metrics import StepRecord

_RECORD_GAUGES = {
    "wall_seconds": "Seconds of the last step",
    "reward_std": "Standard deviation of the last step's rewards",
    "response_length_mean": "Mean completion tokens per answer",
    "truncated_fraction": "Share of answers cut at the token limit",
    "kl": "KL divergence from the reference per token, nats",
    "entropy": "Entropy of the policy per token, nats",
    "clip_fraction": "Share of tokens whose ratio was clipped",
    "loss": "Loss of the last step",
    "grad_norm": "Norm of the gradient before clipping",
    "learning_rate": "Learning rate of the last step",
    "ratio_max": "Largest importance ratio",
    "mismatch_kl": "KL divergence between sampler and trainer per token, nats",
    "value_loss": "Loss of the critic",
    "explained_variance": "Share of the variance of the returns that the critic explains",
    "staleness_max": "Weight versions the oldest group was behind",
    "buffer_fill": "Groups in the buffer",
    "buffer_in_rate": "Groups put into the buffer per second",
    "buffer_out_rate": "Groups taken from the buffer per second",
    "samplers": "Samplers that take part",
    "samples_per_second": "Trajectories trained on per second",
    "zero_variance_groups": "Groups of the last step whose rewards were all equal",
    "weight_version": "Version of the weights",
}


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
        yield self._gauge("step", "Training steps done", progress.step)
        yield self._gauge("max_steps", "Training steps at most", progress.max_steps)
        readings = [
            ("reward_mean", "Mean reward of the last step", progress.reward),
            (
                "heldout_score",
                "Share of exact matches in the last evaluation, 0 to 1",
                progress.heldout_score,
            ),
            ("tokens_per_second", "Completion tokens per second", progress.tokens_per_second),
            ("buffer_fill_ratio", "Groups in the buffer over its capacity", progress.buffer_fill),
            ("staleness_mean", "Weight versions the last step's groups were behind", progress.staleness),
            ("eta_seconds", "Seconds to the last step at the present pace", progress.eta_seconds),
        ]
        if self.checkpoint is not None:
            readings.append(
                ("checkpoint_step", "Training steps the newest checkpoint holds", self.checkpoint.step)
            )
        if record is not None:
            readings += [(name, text, getattr(record, name)) for name, text in _RECORD_GAUGES.items()]
        for name, text, value in readings:
            if value is not None and math.isfinite(value):
                yield self._gauge(name, text, value)
        if record is None:
            return
        parts = GaugeMetricFamily(
            "rltrain_step_part_seconds", "Seconds of the last step by part", labels=["run", "part"]
        )
        for part in ("generate", "score", "train", "publish", "wait", "evaluate"):
            seconds = getattr(record, f"time_{part}")
            if math.isfinite(seconds):
                parts.add_metric([self.name, part], seconds)
        yield parts
        yield self._counter(
            "completion_tokens", "Completion tokens trained on since the driver started", tokens
        )
        yield self._counter(
            "groups_trained", "Groups trained on since the start of the run", record.groups_trained
        )
        yield self._counter(
            "skipped_steps", "Steps skipped because the loss was not a number", record.skipped_steps
        )
        dropped = CounterMetricFamily(
            "rltrain_groups_dropped", "Groups dropped since the start of the run", labels=["run", "reason"]
        )
        for reason, count in record.groups_dropped.items():
            dropped.add_metric([self.name, reason], count)
        yield dropped

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"rltrain_{name}", text, labels=["run"])
        family.add_metric([self.name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"rltrain_{name}", text, labels=["run"])
        family.add_metric([self.name], value)
        return family
