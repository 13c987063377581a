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
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.observe.tensorboard_events import EventWriter
from rl_trainer.storage.files import Closes, dump_json, writing

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
NAN = float("nan")


def _curve(tag: str, default: Any = NAN) -> Any:
    """A field that TensorBoard shows, under one group per question a person asks; others are in metrics.jsonl only."""
    return dataclasses.field(default=default, metadata={"tag": tag})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What is known about one optimizer step. A float that was not measured is NaN (`null` in the file)."""

    step: int  # number of the step, 1 is the first
    time: float  # when the step ended, seconds since the epoch
    # Seconds from the end of the step before to the end of this one.
    wall_seconds: float = _curve("speed/step_seconds", dataclasses.MISSING)
    # Mean reward of the trajectories trained on, in units of the task's reward.
    reward_mean: float = _curve("reward/mean", dataclasses.MISSING)
    reward_std: float = _curve("reward/std")  # their standard deviation
    # Share of held-out prompts answered exactly, 0 to 1; None when not evaluated.
    heldout_score: float | None = _curve("reward/heldout_score", None)
    response_length_mean: float = _curve("response/length_mean")  # mean length of the completions, tokens
    response_length_max: float = _curve("response/length_max")  # length of the longest completion, tokens
    # Share of completions cut at the token limit, or by an observation without room, 0 to 1.
    truncated_fraction: float = _curve("response/truncated_fraction")
    kl: float = _curve("policy/kl")  # mean per-token KL divergence of the policy from the reference, nats
    entropy: float = _curve("policy/entropy")  # mean per-token entropy of the policy, nats
    # Share of tokens whose importance ratio was clipped, 0 to 1.
    clip_fraction: float = _curve("policy/clip_fraction")
    loss: float = _curve("optimizer/loss")  # value of the loss, no unit
    grad_norm: float = _curve("optimizer/grad_norm")  # norm of the gradient before clipping
    learning_rate: float = _curve("optimizer/learning_rate")  # learning rate of this step
    # Mean importance ratio of the policy to the policy before the step.
    ratio_mean: float = _curve("policy/ratio_mean")
    ratio_max: float = _curve("policy/ratio_max")  # its maximum
    # Mean per-token KL divergence between the sampler's log-probs and the trainer's, nats.
    mismatch_kl: float = _curve("policy/mismatch_kl")
    # Value of the critic's loss; like the next four NaN without a critic.
    value_loss: float = _curve("critic/value_loss")
    # Share of tokens whose value left the clip range, 0 to 1.
    value_clip_fraction: float = _curve("critic/value_clip_fraction")
    # Share of the variance of the returns that the critic's values explain, at most 1.
    explained_variance: float = _curve("critic/explained_variance")
    value_mean: float = _curve("critic/value_mean")  # mean value of the sampled tokens, before the update
    return_mean: float = _curve("critic/return_mean")  # mean return of the sampled tokens
    # Mean age of the groups trained on, weight versions.
    staleness_mean: float = _curve("flow/staleness_mean")
    staleness_max: float = _curve("flow/staleness_max")  # age of the oldest, weight versions
    buffer_fill: float = _curve("flow/buffer_fill")  # groups in the buffer at the end of the step
    # Groups put into the buffer per second during the step.
    buffer_in_rate: float = _curve("flow/buffer_in_rate")
    buffer_out_rate: float = _curve("flow/buffer_out_rate")  # groups taken from it per second during the step
    samplers: int = _curve("flow/samplers", 0)  # samplers that took part at the end of the step
    # Completion tokens trained on per second of wall time.
    tokens_per_second: float = _curve("speed/tokens_per_second")
    # Trajectories trained on per second of wall time.
    samples_per_second: float = _curve("speed/samples_per_second")
    completion_tokens: int = 0  # completion tokens trained on in this step
    # Seconds of the step spent generating (asynchronous: mean of samplers, parts overlap).
    time_generate: float = _curve("time/generate")
    time_score: float = _curve("time/score")  # seconds spent scoring answers
    time_train: float = _curve("time/train")  # seconds spent in forward, backward and optimizer
    time_publish: float = _curve("time/publish")  # seconds spent publishing weights to the samplers
    # Seconds the learner waited for groups and nothing else of this list went on.
    time_wait: float = _curve("time/wait")
    time_evaluate: float = _curve("time/evaluate")  # seconds spent evaluating held-out prompts
    groups_trained: int = 0  # groups trained on since the start of the run
    # Groups dropped since the start of the run, by reason.
    groups_dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    # Groups of this step whose rewards were all equal (advantage 0).
    zero_variance_groups: int = _curve("reward/zero_variance_groups", 0)
    # Steps skipped because the loss was not a number, since the start of the run.
    skipped_steps: int = _curve("optimizer/skipped_steps", 0)
    # Indices of the prompts trained on in this step.
    prompts: list[int] = dataclasses.field(default_factory=list)
    weight_version: int = 0  # version of the weights after this step


FIELDS = tuple(field.name for field in dataclasses.fields(StepRecord))
FLOATS = frozenset(field.name for field in dataclasses.fields(StepRecord) if field.type == "float")
TENSORBOARD_TAGS = {f.metadata["tag"]: f.name for f in dataclasses.fields(StepRecord) if f.metadata}


class MetricsWriter(Closes):
    """Appends to `metrics.jsonl` and to the TensorBoard events of a run folder. One writer per folder."""

    def __init__(self, run_folder: Path | str) -> None:
        """Open the files of `run_folder` for appending; a line that a crash left torn is cut off.

        Raises:
            RLTrainError: the files cannot be written.
        """
        self.path = Path(run_folder) / METRICS_FILE
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            self._cut(self.position())
            self._events = EventWriter(Path(run_folder) / TENSORBOARD_FOLDER)

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
        with writing(self.path):
            self._cut(position)
            lines = list(_lines(self.path))
            if self._events.is_empty:
                for line in lines:
                    self._draw(line)
            else:
                self._events.purge(max((line["step"] for line in lines), default=0) + 1)

    def close(self) -> None:
        """Close the files. Writing afterwards is an error of the caller."""
        self._file.close()
        self._events.close()

    def _append(self, line: dict[str, Any]) -> None:
        with writing(self.path):
            self._file.write(dump_json(line).encode() + b"\n")
            self._file.flush()

    def _add_to_curves(self, line: dict[str, Any]) -> None:
        with writing(self.path.parent / TENSORBOARD_FOLDER):
            self._draw(line)

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
