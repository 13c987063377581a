"""What a run measures of devices, bytes and tokens is shown everywhere: in its files, its report, its status and metrics."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rl_api import Progress, RunSpec
from rl_api.crd import run_schema
from rl_operator.model.figures import figures_of
from rl_trainer.observe.charts import SECTIONS, build_columns, visible
from rl_trainer.observe.metrics import MetricsWriter, StepRecord, read_metrics
from rl_trainer.run.counters import Counters
from rl_trainer.run.status_metrics import Reading


@dataclass(frozen=True)
class Quantity:
    """By what names it is known.

    Attributes:
        columns: of metrics.jsonl, and so of the report's charts and the driver's `/metrics` (`rltrain_` and the name).
        field: of `Progress`.
        metric: the operator's, without `rltrain_run_`.
    """

    columns: tuple[str, ...]
    field: str
    metric: str


QUANTITIES = {
    "prompt and response tokens per second": Quantity(
        ("total_tokens_per_second",), "total_tokens_per_second", "total_tokens_per_second"
    ),
    "response tokens per second": Quantity(("tokens_per_second",), "tokens_per_second", "tokens_per_second"),
    "CPUs of a sampler": Quantity(("sampler_cpus",), "sampler_cpus", "sampler_cpus"),
    "CPUs of a learner": Quantity(("learner_cpus",), "learner_cpus", "learner_cpus"),
    "CPUs of the driver": Quantity(("driver_cpus",), "driver_cpus", "driver_cpus"),
    "GPU of a sampler": Quantity(("sampler_gpu_busy_ratio",), "sampler_gpu_busy", "sampler_gpu_busy_ratio"),
    "GPU of a learner": Quantity(("learner_gpu_busy_ratio",), "learner_gpu_busy", "learner_gpu_busy_ratio"),
    "bytes through the object store": Quantity(
        ("weights_bytes", "answers_bytes"), "object_store_bytes", "object_store_bytes"
    ),
    "bytes between nodes": Quantity(
        ("weights_between_nodes_bytes", "answers_between_nodes_bytes"),
        "between_nodes_bytes",
        "between_nodes_bytes",
    ),
}
COLUMNS = [name for one in QUANTITIES.values() for name in one.columns] + ["received_bytes", "store_bytes"]
SPEC = RunSpec.model_validate({"task": {"environment": "reasoning-gym", "name": "chain_sum"}})

each = pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=QUANTITIES)


def record() -> StepRecord:
    """A step in which every quantity has a value of its own, below 1 where shares are."""
    values = {name: 0.25 if name.endswith("_ratio") else 1e6 * (3 + at) for at, name in enumerate(COLUMNS)}
    return StepRecord(step=1, time=1.0, wall_seconds=2.0, reward_mean=0.5, **values)  # type: ignore[arg-type]


@pytest.fixture
def progress() -> Progress:
    return Counters(step=1).progress(SPEC, record())


@pytest.mark.parametrize("column", COLUMNS)
def test_it_is_in_the_runs_file_its_report_and_its_drivers_metrics(
    column: str, tmp_path: Path, progress: Progress
) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(record())
    assert json.loads((tmp_path / "metrics.jsonl").read_text())[column] == getattr(record(), column)
    columns = build_columns(read_metrics(tmp_path / "metrics.jsonl"), [])
    shown = [one for _, charts in SECTIONS for chart in visible(charts, columns) for one in chart.series]
    assert column in [series.column for series in shown]
    reading, registry = Reading("arithmetic"), CollectorRegistry()
    reading.update(progress, record())
    registry.register(reading)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples[f"rltrain_{column}"] == getattr(record(), column)


@each
def test_it_is_in_the_status_its_schema_and_the_operators_metrics(
    quantity: Quantity, progress: Progress
) -> None:
    total = sum(getattr(record(), name) for name in quantity.columns)
    assert getattr(progress, quantity.field) == total
    name = Progress.model_fields[quantity.field].alias
    assert name is not None
    status = json.loads(progress.model_dump_json(by_alias=True))
    assert status[name] == total
    schema = run_schema()
    assert name in schema["properties"]["status"]["properties"]["progress"]["properties"]
    figures = figures_of("", {"phase": "Training", "progress": status})
    assert dict(figures.numbers)[quantity.metric] == total


@each
def test_a_status_that_was_written_without_it_is_read(quantity: Quantity, progress: Progress) -> None:
    status = json.loads(progress.model_dump_json(by_alias=True))
    del status[str(Progress.model_fields[quantity.field].alias)]
    assert getattr(Progress.model_validate(status), quantity.field) is None
    figures = figures_of("", {"phase": "Training", "progress": status})
    assert quantity.metric not in dict(figures.numbers)


def test_what_is_not_known_is_in_none_of_them() -> None:
    nothing = StepRecord(step=1, time=1.0, wall_seconds=2.0, reward_mean=0.5)
    shown = Counters(step=1).progress(SPEC, nothing)
    assert {getattr(shown, one.field) for one in QUANTITIES.values()} == {None}
    seldom = dataclasses.replace(nothing, answers_bytes=7.0)  # no weights were published
    assert Counters(step=1).progress(SPEC, seldom).object_store_bytes == 7
