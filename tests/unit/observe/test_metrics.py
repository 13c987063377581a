import errno
import inspect
import json
import math
import shutil
import subprocess
import sys

import pytest

from rl_api.errors import RLTrainError
from rl_trainer.observe.metrics import (
    FIELDS,
    GAUGES,
    TENSORBOARD_TAGS,
    MetricsWriter,
    StepRecord,
    heldout_curve,
    position_of_step,
    read_events,
    read_metrics,
)


def record(step, **fields):
    return StepRecord(
        **{
            "step": step,
            "time": 1000.0 + step,
            "wall_seconds": 0.5,
            "reward_mean": 0.1 * step,
            "groups_dropped": {"reward_error": step},
            "prompts": [step, step + 1],
            **fields,
        }
    )


def curve(folder, tag):
    """The curve as TensorBoard shows it: (step, value) pairs of all event files together."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return [(point.step, round(point.value, 6)) for point in accumulator.Scalars(tag)]


def test_what_is_written_is_read_back_while_the_writer_is_still_open(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(record(1, heldout_score=0.25, kl=0.5))
        back = read_metrics(writer.path)[0]
    assert back.heldout_score == 0.25
    assert back.groups_dropped == {"reward_error": 1}
    assert back.prompts == [1, 2]
    assert math.isnan(back.entropy)


def test_numbers_that_are_none_are_null_and_come_back_as_nan(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(record(1, loss=math.nan, grad_norm=math.inf))
    line = (tmp_path / "metrics.jsonl").read_text()

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    document = json.loads(line, parse_constant=refuse)
    assert document["loss"] is None
    assert document["grad_norm"] is None
    assert document["heldout_score"] is None
    assert set(document) == set(FIELDS)
    back = read_metrics(tmp_path / "metrics.jsonl")[0]
    assert math.isnan(back.loss)
    assert back.heldout_score is None


def test_every_number_of_a_record_is_described_and_tensorboard_names_real_fields():
    assert set(TENSORBOARD_TAGS.values()) <= set(FIELDS)
    lines = inspect.getsource(StepRecord).splitlines()
    for name in FIELDS:
        place = next(number for number, line in enumerate(lines) if line.startswith(f"    {name}: "))
        assert name in GAUGES or "  # " in lines[place] or lines[place - 1].startswith("    # ")


def test_no_file_means_no_records(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    assert heldout_curve(tmp_path / "metrics.jsonl") == []


def test_a_torn_last_line_is_ignored_and_cut_off_before_more_is_written(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(record(1))
        writer.write(record(2))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [r.step for r in read_metrics(path)] == [1]
    with MetricsWriter(tmp_path) as writer:
        writer.write(record(3))
    assert [r.step for r in read_metrics(path)] == [1, 3]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 1, "wall_seconds": 1, "reward_mean": 1}\nnot json\n{"step": 2}\n')
    with pytest.raises(RLTrainError, match=r"metrics\.jsonl: line 2 is not a metrics line"):
        read_metrics(path)


def test_lines_of_other_versions_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 1, "wall_seconds": 1, "reward_mean": 0.5, "from_the_future": 3}\n')
    back = read_metrics(path)[0]
    assert back.reward_mean == 0.5
    assert math.isnan(back.kl)
    assert back.prompts == []


def test_a_resumed_run_lists_no_step_twice_in_file_and_tensorboard(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for step in (1, 2):
            writer.write(record(step))
        position = writer.position()
        for step in (3, 4):
            writer.write(record(step, reward_mean=-1.0))
    with MetricsWriter(tmp_path) as writer:
        writer.truncate(position)
        assert writer.position() == position
        writer.event("resumed", step=2)
        for step in (3, 4):
            writer.write(record(step, reward_mean=1.0))
    assert [(r.step, r.reward_mean) for r in read_metrics(writer.path)] == [
        (1, 0.1),
        (2, 0.2),
        (3, 1.0),
        (4, 1.0),
    ]
    assert [event["step"] for event in read_events(writer.path, "resumed")] == [2]
    assert curve(tmp_path, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 1.0), (4, 1.0)]


def test_curves_of_many_resumed_runs_within_a_second_are_in_order(tmp_path):
    for step in range(1, 13):
        with MetricsWriter(tmp_path) as writer:
            writer.truncate(writer.position())
            writer.write(record(step))
            writer.write(record(step + 1, reward_mean=-1.0))
            kept = position_of_step(writer.path, step + 1)
            writer.truncate(kept)
    assert curve(tmp_path, "reward/mean") == [(step, step / 10) for step in range(1, 13)]


def test_curves_lost_with_a_disk_are_drawn_anew_from_the_lines(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.event("evaluation", step=0, score=0.25)
        for step in (1, 2):
            writer.write(record(step))
        kept = writer.position()
        writer.write(record(3, reward_mean=-1.0))
    shutil.rmtree(tmp_path / "tensorboard")
    with MetricsWriter(tmp_path) as writer:
        writer.truncate(kept)
        writer.write(record(3))
    assert curve(tmp_path, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert curve(tmp_path, "reward/heldout_score") == [(0, 0.25)]


def test_truncate_keeps_whole_lines_when_the_file_is_shorter_than_the_checkpoint_thought(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(record(1))
        size = writer.position()
        writer.truncate(size + 1000)
        assert writer.position() == size
        writer.truncate(size - 1)
        assert writer.position() == 0


def test_evaluations_come_from_steps_and_events_in_order_of_steps(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.event("evaluation", step=0, score=0.25)
        writer.write(record(1))
        writer.write(record(2, heldout_score=0.5))
        writer.event("evaluation", step=2, score=0.75)
        writer.event("note", step=2, text="something happened")
    assert heldout_curve(writer.path) == [(0, 0.25), (2, 0.75)]
    assert [event["event"] for event in read_events(writer.path)] == ["evaluation", "evaluation", "note"]
    assert curve(tmp_path, "reward/heldout_score")[0] == (0, 0.25)


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    writer = MetricsWriter(tmp_path)
    real = writer._file

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self):
            pass

    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(RLTrainError, match=r"metrics\.jsonl: cannot be written \(No space left on device\)"):
        writer.write(record(1))
    monkeypatch.setattr(writer, "_file", real)
    writer.close()


def test_reading_and_reporting_import_nothing_heavy():
    heavy = "{'torch', 'tensorboard', 'tensorflow', 'transformers', 'ray', 'numpy'}"
    code = f"import sys, rl_trainer.observe.page, rl_trainer.observe.console; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
