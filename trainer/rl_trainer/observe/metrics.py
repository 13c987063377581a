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


def _shown(tag: str = "", gauge: str = "", default: Any = NAN) -> Any:
    """A field that TensorBoard shows, in one group per question a person asks; `gauge`: its description in /metrics."""
    return dataclasses.field(default=default, metadata={"tag": tag, "gauge": gauge})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What is known about one optimizer step. A float that was not measured is NaN (`null` in the file)."""

    step: int  # number of the step, 1 is the first
    time: float  # when the step ended, seconds since the epoch
    # From the end of the step before to the end of this one.
    wall_seconds: float = _shown("speed/step_seconds", "Seconds of the last step", dataclasses.MISSING)
    # Mean reward of the trajectories trained on, in units of the task's reward.
    reward_mean: float = _shown("reward/mean", default=dataclasses.MISSING)
    reward_std: float = _shown("reward/std", "Standard deviation of the last step's rewards")
    # Share of held-out prompts answered exactly, 0 to 1; None when not evaluated.
    heldout_score: float | None = _shown("reward/heldout_score", default=None)
    response_length_mean: float = _shown("response/length_mean", "Mean completion tokens per answer")
    response_length_max: float = _shown("response/length_max")  # length of the longest completion, tokens
    # 0 to 1; cut by an observation without room counts as well.
    truncated_fraction: float = _shown(
        "response/truncated_fraction", "Share of answers cut at the token limit"
    )
    kl: float = _shown("policy/kl", "KL divergence from the reference per token, nats")
    entropy: float = _shown("policy/entropy", "Entropy of the policy per token, nats")
    clip_fraction: float = _shown("policy/clip_fraction", "Share of tokens whose ratio was clipped")
    loss: float = _shown("optimizer/loss", "Loss of the last step")
    grad_norm: float = _shown("optimizer/grad_norm", "Norm of the gradient before clipping")
    learning_rate: float = _shown("optimizer/learning_rate", "Learning rate of the last step")
    # Mean importance ratio of the policy to the policy before the step.
    ratio_mean: float = _shown("policy/ratio_mean")
    ratio_max: float = _shown("policy/ratio_max", "Largest importance ratio")
    mismatch_kl: float = _shown(
        "policy/mismatch_kl", "KL divergence between sampler and trainer per token, nats"
    )
    # This and the next four are NaN without a critic.
    value_loss: float = _shown("critic/value_loss", "Loss of the critic")
    # Share of tokens whose value left the clip range, 0 to 1.
    value_clip_fraction: float = _shown("critic/value_clip_fraction")
    explained_variance: float = _shown(
        "critic/explained_variance", "Share of the variance of the returns that the critic explains"
    )
    value_mean: float = _shown("critic/value_mean")  # mean value of the sampled tokens, before the update
    return_mean: float = _shown("critic/return_mean")  # mean return of the sampled tokens
    # Mean age of the groups trained on, weight versions.
    staleness_mean: float = _shown("flow/staleness_mean")
    staleness_max: float = _shown("flow/staleness_max", "Weight versions the oldest group was behind")
    buffer_fill: float = _shown("flow/buffer_fill", "Groups in the buffer")
    buffer_in_rate: float = _shown("flow/buffer_in_rate", "Groups put into the buffer per second")
    buffer_out_rate: float = _shown("flow/buffer_out_rate", "Groups taken from the buffer per second")
    samplers: int = _shown("flow/samplers", "Samplers that take part", 0)
    # Completion tokens trained on per second of wall time.
    tokens_per_second: float = _shown("speed/tokens_per_second")
    samples_per_second: float = _shown("speed/samples_per_second", "Trajectories trained on per second")
    # Turns of the dialogues trained on, which are steps of their environments; of tasks that have several.
    turns_per_second: float = _shown("speed/turns_per_second", "Turns of dialogues and games per second")
    completion_tokens: int = 0  # completion tokens trained on in this step
    # Tokens trained on, those of prompts and observations too, per second of wall time.
    total_tokens_per_second: float = _shown(
        "speed/total_tokens_per_second", "Prompt and completion tokens per second"
    )
    # Seconds of the step that a plan predicted, where the run has one.
    predicted_seconds: float = _shown("speed/predicted_step_seconds", "Seconds of a step as planned")
    # Seconds of the step spent generating (asynchronous: mean of samplers, parts overlap).
    time_generate: float = _shown("time/generate")
    time_score: float = _shown("time/score")  # seconds spent scoring answers
    # Seconds spent in passes that give log-probabilities before the update, of the policy and of the reference.
    time_log_probs: float = _shown("time/log_probs")
    time_values: float = _shown("time/values")  # seconds spent in passes that give the critic's values
    time_train: float = _shown("time/train")  # seconds spent in forward, backward and optimizer
    time_publish: float = _shown("time/publish")  # seconds spent publishing weights to the samplers
    # Seconds the learner waited for groups, no sampler worked, and these waited for their environments.
    time_environment: float = _shown("time/environment")
    # The same, where they waited for models that score in workers of their own.
    time_judge: float = _shown("time/judge")
    # Seconds the learner waited for groups and nothing else of this list went on.
    time_wait: float = _shown("time/wait")
    time_lease: float = _shown("time/lease")  # seconds spent waiting for devices that others have
    # Seconds spent moving tensors onto devices and off them, and waking up.
    time_switch: float = _shown("time/switch")
    time_evaluate: float = _shown("time/evaluate")  # seconds spent evaluating held-out prompts
    # Processor cores that one actor kept busy, mean over the actors of the role and over time.
    sampler_cpus: float = _shown("use/sampler_cpus", "Processor cores in use by a sampler")
    learner_cpus: float = _shown("use/learner_cpus", "Processor cores in use by a learner")
    driver_cpus: float = _shown("use/driver_cpus", "Processor cores in use by the driver")
    # Floating-point operations per second of one actor of the role, while it decodes or learns; mean over the last 20 steps.
    sampler_flops: float = _shown("use/sampler_flops", "Operations per second of a sampler while it decodes")
    learner_flops: float = _shown("use/learner_flops", "Operations per second of a learner while it learns")
    # Share of the time for which the GPU of an actor of the role computed, whoever used it, as its driver counts it.
    sampler_gpu_busy_ratio: float = _shown(
        "use/sampler_gpu_busy_ratio", "Share of time that a sampler's GPU computes"
    )
    learner_gpu_busy_ratio: float = _shown(
        "use/learner_gpu_busy_ratio", "Share of time that a learner's GPU computes"
    )
    # Most memory of any actor of the role so far, of the learner's GPU where it has one.
    sampler_memory_bytes: float = _shown("use/sampler_memory_bytes", "Peak memory of a sampler")
    learner_memory_bytes: float = _shown("use/learner_memory_bytes", "Peak memory of a learner")
    # What this step put into the object store: a version of the weights, and answers.
    weights_bytes: float = _shown("use/weights_bytes", "Bytes of weights published in the last step")
    answers_bytes: float = _shown("use/answers_bytes", "Bytes of answers trained on in the last step")
    # Mean over the samplers that took new weights: bytes that each read of them.
    received_bytes: float = _shown("use/received_bytes", "Bytes of weights that a sampler has read")
    # What came to a node from another one in this step, once however many actors read it there.
    weights_between_nodes_bytes: float = _shown(
        "use/weights_between_nodes_bytes", "Bytes of weights that went between nodes in the last step"
    )
    answers_between_nodes_bytes: float = _shown(
        "use/answers_between_nodes_bytes", "Bytes of answers that went between nodes in the last step"
    )
    # Primary copies in the object stores of all nodes together when the step ended, or up to two seconds before.
    store_bytes: float = _shown("use/store_bytes", "Bytes of primary copies in Ray's object store")
    groups_trained: int = 0  # groups trained on since the start of the run
    # Groups dropped since the start of the run, by reason.
    groups_dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    zero_variance_groups: int = _shown(
        "reward/zero_variance_groups", "Groups of the last step whose rewards were all equal", 0
    )
    # Steps skipped because the loss was not a number, since the start of the run.
    skipped_steps: int = _shown("optimizer/skipped_steps", default=0)
    # Indices of the prompts trained on in this step.
    prompts: list[int] = dataclasses.field(default_factory=list)
    weight_version: int = _shown("", "Version of the weights", 0)  # after this step


_ALL = dataclasses.fields(StepRecord)
FIELDS = tuple(field.name for field in _ALL)
FLOATS = frozenset(field.name for field in _ALL if field.type == "float")
COUNTS = frozenset(field.name for field in _ALL if field.type == "int") - {"step"}
PARTS = tuple(name.removeprefix("time_") for name in FIELDS if name.startswith("time_"))
TENSORBOARD_TAGS = {field.metadata["tag"]: field.name for field in _ALL if field.metadata.get("tag")}
GAUGES = {field.name: field.metadata["gauge"] for field in _ALL if field.metadata.get("gauge")}


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
