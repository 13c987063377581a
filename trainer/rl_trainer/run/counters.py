"""How far a run is, over all its attempts; and one step's record made of it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rl_api import Progress, RunSpec
from rl_trainer.algorithms.advantages import AdvantageStats
from rl_trainer.buffer.actor import Batch
from rl_trainer.learner.results import UpdateResult
from rl_trainer.observe.metrics import NAN, StepRecord
from rl_trainer.observe.step_times import step_times
from rl_trainer.observe.timeline import Span
from rl_trainer.run.stopping import MEAN_REWARD_STEPS

_KEPT = ("step", "skipped", "skipped_in_a_row", "groups_trained", "heldout", "heldout_step")
_PACE_STEPS = 20


@dataclass
class Counters:
    """Everything countable of a run.

    Attributes:
        step: training steps done.
        skipped: steps whose loss or gradient was not a number.
        skipped_in_a_row: such steps since the last good one.
        groups_trained: groups trained on.
        heldout: newest held-out score.
        heldout_step: step of that score, -1 before the first.
        rewards: mean rewards of the last steps.
        resumed_from: step this attempt began at, None for the first.
        checkpointed_step: step of the newest checkpoint of this attempt.
    """

    step: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    groups_trained: int = 0
    heldout: float | None = None
    heldout_step: int = -1
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=MEAN_REWARD_STEPS))
    resumed_from: int | None = None
    checkpointed_step: int = -1
    earlier_seconds: float = 0.0
    _started: float = field(default_factory=time.monotonic)
    _paces: deque[float] = field(default_factory=lambda: deque(maxlen=_PACE_STEPS))

    @property
    def elapsed(self) -> float:
        """Seconds of reinforcement learning, over all attempts; starting up and the warm start do not count."""
        return self.earlier_seconds + time.monotonic() - self._started

    def start_clock(self) -> None:
        """Training time of this attempt counts from now."""
        self._started = time.monotonic()

    def finish_step(self, batch: Batch, update: UpdateResult) -> None:
        """Counts one training step."""
        self.step += 1
        self.groups_trained += len(batch.groups)
        self.skipped += update.skipped
        self.skipped_in_a_row = 0 if update.optimizer_steps else self.skipped_in_a_row + update.skipped

    def eta(self, spec: RunSpec) -> float | None:
        """Seconds to `stop.maxSteps` at the pace of the last steps."""
        if not self._paces:
            return None
        return sum(self._paces) / len(self._paces) * max(0, spec.stop.max_steps - self.step)

    def saw_step(self, seconds: float, reward: float) -> None:
        """Remembers pace and reward of the step that ended."""
        self._paces.append(seconds)
        self.rewards.append(reward)

    def progress(self, spec: RunSpec, record: StepRecord) -> Progress:
        """What the status server shows after a step, rounded as people read it: `kubectl get` prints every digit."""
        return Progress(
            phase="Training",
            step=self.step,
            max_steps=spec.stop.max_steps,
            reward=_shown(record.reward_mean, 3),
            heldout_score=_shown(self.heldout, 3),
            tokens_per_second=_shown(record.tokens_per_second),
            buffer_fill=_shown(min(record.buffer_fill / spec.buffer.capacity, 1.0), 3),
            staleness=_shown(record.staleness_mean, 2),
            eta_seconds=_shown(self.eta(spec)),
            updated_at=datetime.now(UTC),
        )

    def dump(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: getattr(self, name) for name in _KEPT} | {
            "rewards": list(self.rewards),
            "elapsed": self.elapsed,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Counters:
        """The inverse of `dump`; the step is also the one resumed from."""
        counters = cls(**{name: state[name] for name in _KEPT})
        counters.rewards.extend(state["rewards"])
        counters.earlier_seconds = state["elapsed"]
        counters.resumed_from = counters.checkpointed_step = counters.step
        return counters


def step_record(
    spec: RunSpec,
    counters: Counters,
    batch: Batch,
    rewards: AdvantageStats,
    update: UpdateResult,
    buffer: Mapping[str, Any],
    spans: Sequence[Span],
    wall_seconds: float,
) -> StepRecord:
    """The record of the step that has just ended.

    Args:
        spec: the run.
        counters: after the step.
        batch: what was trained on.
        rewards: statistics of its rewards.
        update: what the learners did.
        buffer: the buffer's metrics.
        spans: of all actors, in this step.
        wall_seconds: since the end of the step before.
    """
    counters.saw_step(wall_seconds, rewards.reward_mean)
    version = (counters.step - 1) // spec.weight_sync.every_steps
    lengths = [length for group in batch.groups for length in group.lengths]
    staleness = [version - group.min_version for group in batch.groups]
    tokens = sum(lengths)
    times = step_times(spans)
    metrics = update.metrics
    return StepRecord(
        step=counters.step,
        time=time.time(),
        wall_seconds=wall_seconds,
        reward_mean=rewards.reward_mean,
        reward_std=rewards.reward_std,
        heldout_score=counters.heldout if counters.heldout_step == counters.step else None,
        response_length_mean=tokens / len(lengths),
        response_length_max=max(lengths),
        truncated_fraction=sum(sum(group.truncated) for group in batch.groups) / len(lengths),
        kl=metrics.get("kl", NAN),
        entropy=metrics.get("entropy", NAN),
        clip_fraction=metrics.get("clip_fraction", NAN),
        loss=metrics.get("loss", NAN),
        grad_norm=update.grad_norm,
        learning_rate=update.learning_rate,
        ratio_mean=metrics.get("ratio_mean", NAN),
        ratio_max=metrics.get("ratio_max", NAN),
        mismatch_kl=metrics.get("mismatch_kl", NAN),
        value_loss=metrics.get("value_loss", NAN),
        value_clip_fraction=metrics.get("value_clip_fraction", NAN),
        explained_variance=metrics.get("explained_variance", NAN),
        value_mean=metrics.get("value_mean", NAN),
        return_mean=metrics.get("return_mean", NAN),
        staleness_mean=sum(staleness) / len(staleness),
        staleness_max=max(staleness),
        buffer_fill=buffer["ready"],
        buffer_in_rate=buffer["in_rate"],
        buffer_out_rate=buffer["out_rate"],
        samplers=len(buffer["samplers"]),
        tokens_per_second=tokens / wall_seconds,
        samples_per_second=len(lengths) / wall_seconds,
        completion_tokens=tokens,
        time_generate=times.generate,
        time_score=times.score,
        time_train=times.train,
        time_publish=times.publish,
        time_wait=times.wait,
        time_evaluate=times.evaluate,
        groups_trained=counters.groups_trained,
        groups_dropped=dict(buffer["drops"]),
        zero_variance_groups=rewards.zero_variance_groups,
        skipped_steps=counters.skipped,
        prompts=[group.group_id for group in batch.groups],
        weight_version=counters.step // spec.weight_sync.every_steps,
    )


def _shown(value: float | None, digits: int | None = None) -> float | None:
    """Rounded; what is not known, or no number, is null in JSON."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
