"""Metrics of a run: one record per optimizer step, as JSON lines and as TensorBoard curves.

`metrics.jsonl` holds two kinds of lines: step records (fields of `StepRecord`), and events, which carry the
key `event` (`evaluation`, `resumed`, `warm_start`, ...). A checkpoint stores `MetricsWriter.position()`;
a resumed run calls `truncate` with it, so that no step is ever listed twice.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.observe.tensorboard_events import EventWriter
from rl_trainer.storage.files import cannot_write, dump_json

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
NAN = float("nan")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What is known about one optimizer step. A float that was not measured is NaN (`null` in the file).

    Attributes:
        step: number of the step, 1 is the first.
        time: when the step ended, seconds since the epoch.
        wall_seconds: seconds from the end of the step before to the end of this one.
        reward_mean: mean reward of the trajectories trained on, in units of the task's reward.
        reward_std: their standard deviation.
        heldout_score: share of held-out prompts answered exactly, 0 to 1; None when not evaluated.
        response_length_mean: mean length of the completions, tokens.
        response_length_max: length of the longest completion, tokens.
        truncated_fraction: share of completions cut at the token limit, or by an observation without room, 0 to 1.
        kl: mean per-token KL divergence of the policy from the reference, nats.
        entropy: mean per-token entropy of the policy, nats.
        clip_fraction: share of tokens whose importance ratio was clipped, 0 to 1.
        loss: value of the loss, no unit.
        grad_norm: norm of the gradient before clipping.
        learning_rate: learning rate of this step.
        ratio_mean: mean importance ratio of the policy to the policy before the step.
        ratio_max: its maximum.
        mismatch_kl: mean per-token KL divergence between the sampler's log-probs and the trainer's, nats.
        value_loss: value of the critic's loss; like the next four NaN without a critic.
        value_clip_fraction: share of tokens whose value left the clip range, 0 to 1.
        explained_variance: share of the variance of the returns that the critic's values explain, at most 1.
        value_mean: mean value of the sampled tokens, before the update.
        return_mean: mean return of the sampled tokens.
        staleness_mean: mean age of the groups trained on, weight versions.
        staleness_max: age of the oldest, weight versions.
        buffer_fill: groups in the buffer at the end of the step.
        buffer_in_rate: groups put into the buffer per second during the step.
        buffer_out_rate: groups taken from it per second during the step.
        samplers: samplers that took part at the end of the step.
        tokens_per_second: completion tokens trained on per second of wall time.
        samples_per_second: trajectories trained on per second of wall time.
        completion_tokens: completion tokens trained on in this step.
        time_generate: seconds of the step spent generating (asynchronous: mean of samplers, parts overlap).
        time_score: seconds spent scoring answers.
        time_train: seconds spent in forward, backward and optimizer.
        time_publish: seconds spent publishing weights to the samplers.
        time_wait: seconds the learner waited for groups and nothing else of this list went on.
        time_evaluate: seconds spent evaluating held-out prompts.
        groups_trained: groups trained on since the start of the run.
        groups_dropped: groups dropped since the start of the run, by reason.
        zero_variance_groups: groups of this step whose rewards were all equal (advantage 0).
        skipped_steps: steps skipped because the loss was not a number, since the start of the run.
        prompts: indices of the prompts trained on in this step.
        weight_version: version of the weights after this step.
    """

    step: int
    time: float
    wall_seconds: float
    reward_mean: float
    reward_std: float = NAN
    heldout_score: float | None = None
    response_length_mean: float = NAN
    response_length_max: float = NAN
    truncated_fraction: float = NAN
    kl: float = NAN
    entropy: float = NAN
    clip_fraction: float = NAN
    loss: float = NAN
    grad_norm: float = NAN
    learning_rate: float = NAN
    ratio_mean: float = NAN
    ratio_max: float = NAN
    mismatch_kl: float = NAN
    value_loss: float = NAN
    value_clip_fraction: float = NAN
    explained_variance: float = NAN
    value_mean: float = NAN
    return_mean: float = NAN
    staleness_mean: float = NAN
    staleness_max: float = NAN
    buffer_fill: float = NAN
    buffer_in_rate: float = NAN
    buffer_out_rate: float = NAN
    samplers: int = 0
    tokens_per_second: float = NAN
    samples_per_second: float = NAN
    completion_tokens: int = 0
    time_generate: float = NAN
    time_score: float = NAN
    time_train: float = NAN
    time_publish: float = NAN
    time_wait: float = NAN
    time_evaluate: float = NAN
    groups_trained: int = 0
    groups_dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    zero_variance_groups: int = 0
    skipped_steps: int = 0
    prompts: list[int] = dataclasses.field(default_factory=list)
    weight_version: int = 0


FIELDS = tuple(field.name for field in dataclasses.fields(StepRecord))
FLOATS = frozenset(field.name for field in dataclasses.fields(StepRecord) if field.type == "float")
# One TensorBoard group per question a person asks; what is not listed stays in metrics.jsonl only.
TENSORBOARD_TAGS = {
    "reward/mean": "reward_mean",
    "reward/std": "reward_std",
    "reward/heldout_score": "heldout_score",
    "reward/zero_variance_groups": "zero_variance_groups",
    "response/length_mean": "response_length_mean",
    "response/length_max": "response_length_max",
    "response/truncated_fraction": "truncated_fraction",
    "policy/kl": "kl",
    "policy/entropy": "entropy",
    "policy/clip_fraction": "clip_fraction",
    "policy/ratio_mean": "ratio_mean",
    "policy/ratio_max": "ratio_max",
    "policy/mismatch_kl": "mismatch_kl",
    "critic/value_loss": "value_loss",
    "critic/value_clip_fraction": "value_clip_fraction",
    "critic/explained_variance": "explained_variance",
    "critic/value_mean": "value_mean",
    "critic/return_mean": "return_mean",
    "optimizer/loss": "loss",
    "optimizer/grad_norm": "grad_norm",
    "optimizer/learning_rate": "learning_rate",
    "optimizer/skipped_steps": "skipped_steps",
    "flow/staleness_mean": "staleness_mean",
    "flow/staleness_max": "staleness_max",
    "flow/buffer_fill": "buffer_fill",
    "flow/buffer_in_rate": "buffer_in_rate",
    "flow/buffer_out_rate": "buffer_out_rate",
    "flow/samplers": "samplers",
    "speed/tokens_per_second": "tokens_per_second",
    "speed/samples_per_second": "samples_per_second",
    "speed/step_seconds": "wall_seconds",
    "time/generate": "time_generate",
    "time/score": "time_score",
    "time/train": "time_train",
    "time/publish": "time_publish",
    "time/wait": "time_wait",
    "time/evaluate": "time_evaluate",
}


class MetricsWriter:
    """Appends to `metrics.jsonl` and to the TensorBoard events of a run folder. One writer per folder."""

    def __init__(self, run_folder: Path | str) -> None:
        """Open the files of `run_folder` for appending; a line that a crash left torn is cut off.

        Raises:
            RLTrainError: the files cannot be written.
        """
        self.path = Path(run_folder) / METRICS_FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            self._cut(self.position())
            self._events = EventWriter(Path(run_folder) / TENSORBOARD_FOLDER)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write(self, record: StepRecord) -> None:
        """Append one step and flush it, so that whoever reads the files now sees it.

        Raises:
            RLTrainError: the disk is full or the folder is gone.
        """
        line = {name: getattr(record, name) for name in FIELDS}
        self._append(line)
        self._add_to_curves(line)

    def event(self, kind: str, *, step: int, **fields: Any) -> None:
        """Append something that is not a step; `step` is the last finished one.

        Kinds that the report knows: `evaluation` (`score`; also a point of the held-out curve), `resumed`,
        `warm_start` (`warm_start_step`, `score`; a line below the result), and any with a `text` for people.
        """
        line = {"event": kind, "step": step, "time": time.time(), **fields}
        self._append(line)
        self._add_to_curves(line)

    def position(self) -> int:
        """Return the size of `metrics.jsonl` in bytes, after everything written so far."""
        return self._file.seek(0, 2)

    def truncate(self, position: int) -> None:
        """Forget every line after `position` bytes, here and in TensorBoard; for a resumed run.

        Where the curves are lost, as on another node's disk, they are drawn anew from the lines that are left.
        """
        try:
            self._cut(position)
            lines = list(_lines(self.path))
            if self._events.is_empty:
                for line in lines:
                    self._draw(line)
            else:
                self._events.purge(max((line["step"] for line in lines), default=0) + 1)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the files. Writing afterwards is an error of the caller."""
        self._file.close()
        self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(dump_json(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _add_to_curves(self, line: dict[str, Any]) -> None:
        try:
            self._draw(line)
        except OSError as error:
            raise cannot_write(self.path.parent / TENSORBOARD_FOLDER, error) from error

    def _draw(self, line: dict[str, Any]) -> None:
        """The points of a line of metrics.jsonl."""
        if "event" not in line:
            points = {tag: line.get(name) for tag, name in TENSORBOARD_TAGS.items()}
        elif line["event"] == "evaluation":
            points = {"reward/heldout_score": line.get("score")}
        else:
            return
        self._events.scalars(line["step"], line.get("time", 0.0), points)

    def _cut(self, position: int) -> None:
        """Keep whole lines within the first `position` bytes (a lost disk cache may have left fewer)."""
        content = self.path.read_bytes()[:position]
        self._file.truncate(content.rfind(b"\n") + 1)


def position_of_step(path: Path | str, step: int) -> int:
    """Return the bytes before the first step record or event of a `metrics.jsonl` that is at `step` or after it."""
    position = 0
    for text in Path(path).read_bytes().splitlines(keepends=True):
        line = json.loads(text)
        if line["step"] >= step and line.get("event") != "resumed":
            break
        position += len(text)
    return position


def read_metrics(path: Path | str) -> list[StepRecord]:
    """Return the step records of a `metrics.jsonl`, in the order written; no file means no records.

    A torn last line (a crash while writing) is ignored, fields this version does not know are too, and
    missing ones get their default.

    Raises:
        RLTrainError: a line that is not the last one is broken.
    """
    return [_record(line) for line in _lines(Path(path)) if "event" not in line]


def read_events(path: Path | str, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the event lines of a `metrics.jsonl`, all or of one kind; errors as in `read_metrics`."""
    return [line for line in _lines(Path(path)) if "event" in line and kind in (None, line["event"])]


def heldout_curve(path: Path | str) -> list[tuple[int, float]]:
    """Return (step, held-out score) of every evaluation, by step; the last one of a step wins."""
    scores: dict[int, float] = {}
    for line in _lines(Path(path)):
        score = line.get("score") if line.get("event") == "evaluation" else line.get("heldout_score")
        if isinstance(score, int | float) and math.isfinite(score):
            scores[line["step"]] = float(score)
    return sorted(scores.items())


def _record(line: dict[str, Any]) -> StepRecord:
    fields: dict[str, Any] = {name: line[name] for name in FIELDS if name in line}
    for name, value in fields.items():
        if value is None and name in FLOATS:
            fields[name] = NAN
    return StepRecord(**fields)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            line["step"] = int(line["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):  # no newline after it: the writer died in the middle
                return
            raise RLTrainError(
                f"{path}: line {number} is not a metrics line ({error}); remove that line and try again"
            ) from error
        yield line
