import json
import pickle

import pytest

from rl_api.errors import RLTrainError
from rl_trainer.observe.timeline import (
    DROPPED,
    Span,
    SpanRecorder,
    TimelineWriter,
    read_timeline,
)


def events(folder, kind):
    trace = json.loads((folder / "timeline.json").read_text())
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_a_recorder_measures_blocks_and_gives_them_away_once():
    recorder = SpanRecorder("sampler 0")
    with recorder.span("generate", group=7) as args:
        args["tokens"] = 12
    recorder.add("score", 10.0, 11.5, name="a keyword called name")
    generate, score = recorder.drain()
    assert (generate.actor, generate.name, generate.args) == (
        "sampler 0",
        "generate",
        {"group": 7, "tokens": 12},
    )
    assert generate.end >= generate.start
    assert score == Span("sampler 0", "score", 10.0, 11.5, {"name": "a keyword called name"})
    assert recorder.drain() == []


def test_a_block_that_raises_is_recorded():
    recorder = SpanRecorder("learner 0")

    with pytest.raises(ValueError, match="half-way"), recorder.span("train"):
        raise ValueError("half-way")
    assert [span.name for span in recorder.drain()] == ["train"]


def test_a_recorder_that_nobody_drains_stays_small_and_says_what_it_dropped():
    recorder = SpanRecorder("buffer", capacity=3)
    for second in range(5):
        recorder.add("put", second, second + 1)
    spans = recorder.drain()
    assert [span.name for span in spans] == ["put", "put", "put", DROPPED]
    assert spans[-1].args == {"count": 2}


def test_spans_travel_between_processes():
    spans = [Span("a", "b", 1.0, 2.0, {"c": 3})]
    assert pickle.loads(pickle.dumps(spans)) == spans


def test_the_file_is_a_valid_trace_after_every_write_with_one_named_row_per_actor(tmp_path):
    writer = TimelineWriter(tmp_path)
    assert events(tmp_path, "X") == []
    writer.write([Span("driver", "wait", 100.0, 100.25, {"step": 1})])
    assert len(events(tmp_path, "X")) == 1
    writer.write([Span("sampler 0", "generate", 100.0, 100.5), Span("driver", "publish", 100.5, 100.6)])
    first = events(tmp_path, "X")[0]
    assert first == {
        "name": "wait",
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": 100_000_000,
        "dur": 250_000,
        "args": {"step": 1},
    }
    assert [event["tid"] for event in events(tmp_path, "X")] == [1, 2, 1]
    names = [event["args"]["name"] for event in events(tmp_path, "M") if event["name"] == "thread_name"]
    assert names == ["driver", "sampler 0"]
    writer.write([])
    writer.close()
    assert len(read_timeline(tmp_path / "timeline.json")) == 3


def test_arguments_that_json_does_not_know_become_text(tmp_path):
    with TimelineWriter(tmp_path) as writer:
        writer.write([Span("a", "b", 1.0, 2.0, {"path": tmp_path, "nan": float("nan"), "list": [1]})])
    assert events(tmp_path, "X")[0]["args"] == {"path": str(tmp_path), "nan": None, "list": "[1]"}


def test_a_resumed_run_continues_the_rows(tmp_path):
    with TimelineWriter(tmp_path) as writer:
        writer.write([Span("driver", "wait", 1.0, 2.0), Span("learner 0", "train", 2.0, 3.0)])
    with TimelineWriter(tmp_path) as writer:
        writer.write([Span("sampler 0", "generate", 5.0, 6.0), Span("learner 0", "train", 6.0, 7.0)])
    assert [(span.actor, span.start) for span in read_timeline(writer.path)] == [
        ("driver", 1.0),
        ("learner 0", 2.0),
        ("sampler 0", 5.0),
        ("learner 0", 6.0),
    ]
    rows = {
        event["args"]["name"]: event["tid"]
        for event in events(tmp_path, "M")
        if event["name"] == "thread_name"
    }
    assert rows == {"driver": 1, "learner 0": 2, "sampler 0": 3}


@pytest.mark.parametrize("cut", [1, 4, 40, 120])
def test_a_file_that_a_crash_tore_is_mended(tmp_path, cut):
    with TimelineWriter(tmp_path) as writer:
        writer.write([Span("driver", "wait", float(second), second + 0.5) for second in range(5)])
    path = tmp_path / "timeline.json"
    path.write_bytes(path.read_bytes()[:-cut])
    with TimelineWriter(tmp_path) as writer:
        writer.write([Span("driver", "publish", 9.0, 9.5)])
    spans = [(event["name"], event["ts"]) for event in events(tmp_path, "X")]
    assert spans[0] == ("wait", 0)
    assert spans[-1] == ("publish", 9_000_000)
    assert len(spans) >= 4


def test_the_file_is_bounded_keeps_the_newest_and_says_how_many_went(tmp_path):
    writer = TimelineWriter(tmp_path, max_spans=10)
    for second in range(40):
        writer.write([Span(f"sampler {second % 2}", "generate", float(second), second + 0.5)])
    writer.close()
    spans = read_timeline(writer.path)
    assert len(spans) <= 11
    assert spans[-1].start == 39.0
    assert (
        writer.dropped == 40 - len(spans) == TimelineWriter(tmp_path).dropped
    )  # also when it is opened again
    assert {event["args"]["name"] for event in events(tmp_path, "M") if event["name"] == "thread_name"} == {
        "sampler 0",
        "sampler 1",
    }


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RLTrainError, match=r"timeline\.json: cannot be written"):
        TimelineWriter(tmp_path / "file" / "below")


def test_no_file_means_no_spans(tmp_path):
    assert read_timeline(tmp_path / "timeline.json") == []
