"""What a program's lines say: steps, events, and lines that say nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rl_trainer.observe.metrics import FIELDS, StepRecord
from rl_trainer.program.lines import BadLine, Event, Line, Tail, parse_line


def parse(text: str) -> Line:
    return parse_line(text, now=1000.0, wall_seconds=2.5)


def test_the_least_a_step_says() -> None:
    record = parse('{"step": 3}')
    assert isinstance(record, StepRecord)
    assert (record.step, record.time, record.wall_seconds) == (3, 1000.0, 2.5)
    assert math.isnan(record.reward_mean)
    assert record.heldout_score is None


def test_what_a_step_says_is_kept_and_the_rest_is_left_alone() -> None:
    said = {"step": 3, "time": 7.0, "wall_seconds": 1, "reward_mean": 0.5, "heldout_score": 0.25}
    said |= {"kl": 1e-3, "completion_tokens": 12, "samplers": 2, "loss/policy": "high", "prompts": "no"}
    record = parse(json.dumps(said))
    assert isinstance(record, StepRecord)
    assert {name: getattr(record, name) for name in said if name in FIELDS and name != "prompts"} == {
        name: value for name, value in said.items() if name in FIELDS and name != "prompts"
    }
    assert record.prompts == []


def test_null_and_nan_are_numbers_that_were_not_measured() -> None:
    record = parse('{"step": 1, "reward_mean": NaN, "kl": null, "time": NaN}')
    assert isinstance(record, StepRecord)
    assert math.isnan(record.reward_mean)
    assert math.isnan(record.kl)
    assert record.time == 1000.0


def test_an_event() -> None:
    found = parse('{"event": "checkpoint", "step": 0, "time": 5, "path": "a/b"}')
    assert found == Event("checkpoint", 0, {"path": "a/b"})
    assert parse('{"event": "evaluation", "step": 3, "score": 0}') == Event("evaluation", 3, {"score": 0})
    longest = "a" * 1024
    for path in (longest, None):
        said = {"event": "checkpoint", "step": 2**53 - 1, "path": path}
        assert parse(json.dumps(said)) == Event("checkpoint", 2**53 - 1, {"path": path})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("step 5", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"loss": 1}', "step is None"),
        ('{"step": 0}', "allowed: a whole number from 1 to 9007199254740991"),
        ('{"step": 1, "reward_mean": 1' + "0" * 400 + "}", "allowed: a number or null"),
        ('{"step": 1.5}', "step is 1.5"),
        ('{"step": 1, "weight_version": 100000000000000000000}', "weight_version is 100000000000000000000"),
        ("[" * 100_000, "no JSON object"),
        ('{"step": true}', "step is True"),
        ('{"step": 1, "reward_mean": "high"}', "reward_mean is 'high'"),
        ('{"step": 1, "samplers": 1.5}', "samplers is 1.5"),
        ('{"step": 1, "event": 5}', "event is 5"),
        ('{"step": 100000000000000000000}', "a whole number from 1 to 9007199254740991"),
        (
            '{"step": 100000000000000000000, "event": "checkpoint"}',
            "step is 100000000000000000000, allowed: a whole",
        ),
        (
            '{"step": 1, "completion_tokens": 100000000000000000000}',
            "a whole number from 0 to 9007199254740991",
        ),
        ('{"step": 1, "event": "evaluation", "score": 1' + "0" * 400 + "}", "score is 1000"),
        ('{"step": 1, "event": "evaluation", "score": NaN}', "score is nan, allowed: a number"),
        (
            '{"step": 1, "event": "checkpoint", "path": "a\\u001b[2J"}',
            "path is 'a\\x1b[2J', allowed: text of",
        ),
        (
            '{"step": 1, "event": "checkpoint", "path": "' + "é" * 513 + '"}',
            "of at most 1024 bytes, without control",
        ),
        ('{"step": 1, "event": "checkpoint", "path": 5}', "path is 5"),
        (
            '{"step": 1, "event": "note", "text": ' + "[" * 17 + "]" * 17 + "}",
            "nested in more than 16 levels",
        ),
        ("[" * 5000, "no JSON object"),
    ],
)
def test_a_line_that_says_nothing(text: str, why: str) -> None:
    found = parse(text)
    assert isinstance(found, BadLine)
    assert why in found.why


def test_whole_lines_only_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert list(tail.read()) == []
    path.write_text("one\ntw")
    assert list(tail.read()) == ["one"]
    with path.open("a") as file:
        file.write("o\n\nthree\n")
    assert list(tail.read()) == ["two", "three"]
    assert list(tail.read()) == []


def test_a_line_counts_once_it_is_taken(tmp_path: Path) -> None:
    """Who writes down how far it is in the middle of what was read, and is killed, goes on with the next line."""
    path = tmp_path / "lines"
    path.write_text("one\n\ntwo\nthree\nfo")
    tail = Tail(path)
    lines = tail.read()
    assert (next(lines), tail.position) == ("one", 4)
    assert (next(lines), tail.position) == ("two", 9)
    assert list(Tail(path, tail.position).read()) == ["three"]
    assert (list(lines), tail.position) == (["three"], 15)


def test_a_file_that_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    path.write_text("a long first line\n")
    list(tail.read())
    path.write_text("new\n")
    assert list(tail.read()) == ["new"]
