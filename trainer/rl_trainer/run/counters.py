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
from rl_api.errors import TrainingDiverged
from rl_api.placement_status import WantedPlacement
from rl_api.planner.first import First
from rl_api.sizes.operations import forward_operations, learning_operations
from rl_api.sizes.shape import ModelShape
from rl_api.status_fields import MOST
from rl_trainer.algorithms.advantages import AdvantageStats
from rl_trainer.buffer.actor import Batch
from rl_trainer.learner.results import UpdateResult
from rl_trainer.observe.between_nodes import BetweenNodes
from rl_trainer.observe.metrics import FIELDS, StepRecord
from rl_trainer.observe.step_times import busy_seconds, computing_seconds, rates, step_times, turns, use
from rl_trainer.observe.timeline import Span
from rl_trainer.run.replan import placement_status
from rl_trainer.trajectory import Group, packed_bytes

_KEPT = ("step", "skipped", "skipped_in_a_row", "groups_trained", "heldout", "heldout_step")
_PACE_STEPS = 20
_MEAN_REWARD_STEPS = 10
_SKIPPED_IN_A_ROW = 3


@dataclass
class Counters:
    """Everything countable of a run."""

    step: int = 0  # training steps done
    skipped: int = 0  # steps whose loss or gradient was not a number
    skipped_in_a_row: int = 0  # such steps since the last good one
    groups_trained: int = 0
    heldout: float | None = None  # newest held-out score
    heldout_step: int = -1  # step of that score, -1 before the first
    # Mean rewards of the last steps.
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=_MEAN_REWARD_STEPS))
    resumed_from: int | None = None  # step this attempt began at, None for the first
    checkpointed_step: int = -1  # step of the newest checkpoint of this attempt
    earlier_seconds: float = 0.0
    between_nodes: BetweenNodes = field(default_factory=BetweenNodes)
    _started: float = field(default_factory=time.monotonic)
    _paces: deque[float] = field(default_factory=lambda: deque(maxlen=_PACE_STEPS))
    # Of the same steps: sampler seconds that there were, and those that samplers and learners worked.
    _work: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_PACE_STEPS))
    # Of the same steps, by role: floating-point operations, and the seconds that they took.
    _computed: deque[tuple[Mapping[str, float], Mapping[str, float]]] = field(
        default_factory=lambda: deque(maxlen=_PACE_STEPS)
    )

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

    @property
    def pace(self) -> float | None:
        """Seconds of a step, mean of the last ones; None: there was none."""
        return sum(self._paces) / len(self._paces) if self._paces else None

    def eta(self, spec: RunSpec) -> float | None:
        """Seconds to `stop.maxSteps` at the pace of the last steps."""
        pace = self.pace
        return None if pace is None else pace * max(0, spec.stop.max_steps - self.step)

    def stop_reason(self, spec: RunSpec) -> str | None:
        """Why the run ends after this step, or None. A target is one for the held-out score, where there is such."""
        stop, score = spec.stop, self.heldout
        if spec.task.evaluation is None:
            whole = len(self.rewards) == _MEAN_REWARD_STEPS
            score = math.fsum(self.rewards) / _MEAN_REWARD_STEPS if whole else None
        if stop.target_reward is not None and score is not None and score >= stop.target_reward:
            return "targetReward"
        if self.step >= stop.max_steps:
            return "maxSteps"
        if stop.max_duration is not None and self.elapsed >= stop.max_duration.seconds:
            return "maxDuration"
        return None

    def check_divergence(self) -> None:
        """Ends a run whose loss stays no number. Raises TrainingDiverged."""
        if self.skipped_in_a_row >= _SKIPPED_IN_A_ROW:
            raise TrainingDiverged(
                f"loss or gradient was not a number in {self.skipped_in_a_row} steps in a row; lower algorithm.learningRate "
                "or algorithm.gradientClip, look for extreme rewards, and go on from the last checkpoint with --resume"
            )

    def saw_step(
        self,
        seconds: float,
        reward: float,
        samplers: int = 0,
        spans: Sequence[Span] = (),
        operations: Mapping[str, float] | None = None,
    ) -> None:
        """Remembers pace and reward of the step that ended, how many samplers and what `spans` it had, and how many
        floating-point `operations` it took by role; None: not known."""
        self._paces.append(seconds)
        self._work.append((samplers * seconds, *busy_seconds(spans)))
        self._computed.append((operations or {}, computing_seconds(spans)))
        self.rewards.append(reward)

    @property
    def rates(self) -> dict[str, float]:
        """Operations per second of one actor of a role, over the last steps, by field of `StepRecord`."""
        return rates(self._computed)

    @property
    def busy(self) -> tuple[float | None, float | None]:
        """Shares of the last steps' time for which samplers made what was trained on, and learners trained.

        A group that is trained on later than it was made counts where it is trained on; what is dropped does not count.
        None: nobody tells, as with a program of the user's.
        """
        there, seconds = math.fsum(one for one, *_ in self._work), math.fsum(self._paces)
        made, trained = math.fsum(one for _, one, _ in self._work), math.fsum(one for *_, one in self._work)
        return (
            min(made / there, 1.0) if there else None,
            min(trained / seconds, 1.0) if there else None,
        )

    def progress(
        self,
        spec: RunSpec,
        record: StepRecord,
        wanted: WantedPlacement | None = None,
        first: First | None = None,
    ) -> Progress:
        """What the status server shows after a step, rounded as people read it: `kubectl get` prints every digit.

        `wanted`: the placement that would be better; `first`: what a prior has chosen to begin with."""
        samplers, learners = self.busy
        return Progress(
            phase="Training",
            step=self.step,
            max_steps=spec.stop.max_steps,
            reward=_shown(record.reward_mean, 3),
            heldout_score=_shown(self.heldout, 3),
            tokens_per_second=_amount(record.tokens_per_second),
            total_tokens_per_second=_amount(record.total_tokens_per_second),
            buffer_fill=_amount(min(record.buffer_fill / spec.buffer.capacity, 1.0), 3),
            staleness=_amount(record.staleness_mean, 2),
            sampler_busy=_shown(samplers, 3),
            learner_busy=_shown(learners, 3),
            sampler_cpus=_amount(record.sampler_cpus, 2),
            learner_cpus=_amount(record.learner_cpus, 2),
            driver_cpus=_amount(record.driver_cpus, 2),
            sampler_gpu_busy=_amount(record.sampler_gpu_busy_ratio, 3, most=1.0),
            learner_gpu_busy=_amount(record.learner_gpu_busy_ratio, 3, most=1.0),
            object_store_bytes=_together(record.weights_bytes, record.answers_bytes),
            between_nodes_bytes=_together(
                record.weights_between_nodes_bytes, record.answers_between_nodes_bytes
            ),
            eta_seconds=_shown(self.eta(spec)),
            placement=placement_status(spec, record.predicted_seconds, self.pace, wanted, first),
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
    shape: ModelShape | None = None,
) -> StepRecord:
    """The record of the step that has just ended, which took `wall_seconds` since the end of the one before.

    `counters` and `buffer`'s metrics are those after the step, `spans` those of all actors in it. `shape`: of the model;
    None: not known, and nothing is said of operations.
    """
    done = None if shape is None else operations(spec, shape, batch.groups)
    counters.saw_step(wall_seconds, rewards.reward_mean, len(buffer["samplers"]), spans, done)
    version = (counters.step - 1) // spec.weight_sync.every_steps
    lengths = [length for group in batch.groups for length in group.lengths]
    staleness = [version - group.min_version for group in batch.groups]
    tokens = sum(lengths)
    return StepRecord(
        **{name: value for name, value in update.metrics.items() if name in FIELDS},
        **step_times(spans),
        **use(spans),
        **counters.rates,
        **counters.between_nodes.step(spans),
        step=counters.step,
        time=time.time(),
        wall_seconds=wall_seconds,
        reward_mean=rewards.reward_mean,
        reward_std=rewards.reward_std,
        heldout_score=counters.heldout if counters.heldout_step == counters.step else None,
        response_length_mean=tokens / len(lengths),
        response_length_max=max(lengths),
        truncated_fraction=sum(sum(group.truncated) for group in batch.groups) / len(lengths),
        grad_norm=update.grad_norm,
        learning_rate=update.learning_rate,
        staleness_mean=sum(staleness) / len(staleness),
        staleness_max=max(staleness),
        buffer_fill=buffer["ready"],
        buffer_in_rate=buffer["in_rate"],
        buffer_out_rate=buffer["out_rate"],
        samplers=len(buffer["samplers"]),
        tokens_per_second=tokens / wall_seconds,
        samples_per_second=len(lengths) / wall_seconds,
        turns_per_second=turns(spans) / wall_seconds if spec.task.dialogues else math.nan,
        completion_tokens=tokens,
        total_tokens_per_second=sum(sum(group.total_lengths) for group in batch.groups) / wall_seconds,
        answers_bytes=float(sum(packed_bytes(group) for group in batch.groups)),
        groups_trained=counters.groups_trained,
        groups_dropped=dict(buffer["drops"]),
        zero_variance_groups=rewards.zero_variance_groups,
        skipped_steps=counters.skipped,
        prompts=[group.group_id for group in batch.groups],
        weight_version=counters.step // spec.weight_sync.every_steps,
    )


def operations(spec: RunSpec, shape: ModelShape, groups: Sequence[Group]) -> dict[str, float]:
    """Floating-point operations of a step by role; where a server decodes, only what learners do."""
    sizes = [(group.lengths, group.total_lengths, group.prompt_length) for group in groups]
    found = {"learner": sum(learning_operations(spec, shape, *one) for one in sizes)}
    if spec.sampler.engine != "endpoint":
        found["sampler"] = sum(forward_operations(shape, *one) for one in sizes)
    return found


def _shown(value: float | None, digits: int | None = None) -> float | None:
    """Rounded; what is not known, or no number, is null in JSON."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _amount(value: float, digits: int | None = None, most: float = math.inf) -> float | None:
    """As `_shown`; what a program of the user's says below 0 or above `most` is not known."""
    return _shown(value, digits) if 0 <= value <= most else None


def _together(*parts: float) -> int | None:
    """Bytes; a part that is not known counts as none, None where none is: a step publishes no weights, or nobody tells."""
    known = [part for part in parts if 0 <= part <= MOST]
    return min(round(math.fsum(known)), MOST) if known else None
