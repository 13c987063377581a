"""What the gate is told: its limits, and the probe's questions with their scorers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_api.errors import InvalidConfig
from rl_serve.gate.criteria import AgreementRule, Gate, HeldOutRule, LatencyRule, ProbeRule, parse_gate
from rl_serve.gate.probe import Probe, parse_probe, read_probe


def test_a_gate_as_an_object_says_it() -> None:
    found = {
        "heldOut": {"samples": 64, "confidence": 0.9, "maxDrop": 0.1},
        "probe": {"maxDrop": 0.2, "minScore": 0.5},
        "latency": {"maxRatio": 2},
        "agreement": {"maxDifference": 0.1},
    }
    assert parse_gate(found) == Gate(
        HeldOutRule(64, 0.9, 0.1), ProbeRule(0.2, 0.5), LatencyRule(2.0), AgreementRule(0.1)
    )


def test_defaults_and_parts_that_are_not_there() -> None:
    assert parse_gate(None) == parse_gate({}) == parse_gate({"heldOut": None}) == Gate()
    everything = parse_gate({"heldOut": {}, "probe": {"minScore": None}, "latency": {}, "agreement": {}})
    assert everything == Gate(HeldOutRule(), ProbeRule(), LatencyRule(), AgreementRule())


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([], "gate: found [], allowed: an object"),
        ({"heldOut": 3}, "gate.heldOut: found 3, allowed: an object"),
        ({"heldOut": {"samples": 0}}, "gate.heldOut.samples: found 0, allowed: a number from 1 to 100000"),
        (
            {"heldOut": {"samples": 1.5}},
            "gate.heldOut.samples: found 1.5, allowed: a whole number from 1 to 100000",
        ),
        (
            {"heldOut": {"maxDrop": True}},
            "gate.heldOut.maxDrop: found true, allowed: a number from 0 to 1",
        ),
        (
            {"heldOut": {"confidence": 1}},
            "gate.heldOut.confidence: found 1, allowed: a number from 0.5 to 0.9999",
        ),
        (
            {"probe": {"minScore": float("nan")}},
            "gate.probe.minScore: found NaN, allowed: a number from 0 to 1",
        ),
        (
            {"latency": {"maxRatio": "2"}},
            'gate.latency.maxRatio: found "2", allowed: a number from 0.1 to 1000',
        ),
        ({"agreement": {"max": 1}}, "gate.agreement.max: unknown field; take it out"),
        ({"reward": {}}, "gate.reward: unknown field; take it out"),
    ],
)
def test_a_mistake_is_one_sentence(found: Any, sentence: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        parse_gate(found)
    assert str(error.value) == sentence


def probe(scorer: str, *lines: dict[str, Any]) -> Probe:
    return parse_probe("q.jsonl", "\n\n".join(map(json.dumps, lines)).encode(), scorer)


@pytest.mark.parametrize(
    ("scorer", "answer", "text", "right"),
    [
        ("exact", "42", " 42\n", True),
        ("exact", 42, "42", True),
        ("exact", "42", "42.", False),
        ("contains", "Paris", "It is Paris.", True),
        ("contains", " Paris ", "paris", False),
        ("number", "1,000", "so it is 1000.0", True),
        ("number", 2, "1 or 2", True),
        ("number", 2, "2 or 1", False),
        ("number", 2, "none", False),
    ],
)
def test_scorers(scorer: str, answer: str | int, text: str, right: bool) -> None:
    assert probe(scorer, {"prompt": "?", "answer": answer}).right(0, text) is right


def test_text_and_messages_in_a_file(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "short"}, {"role": "user", "content": "?"}]
    lines = [{"prompt": "6*7=", "answer": "42", "note": "left alone"}, {"messages": chat, "answer": "a"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_probe(tmp_path / "q.jsonl", "exact")
    assert [one.content for one in found.questions] == ["6*7=", tuple(chat)]
    assert [one.answer for one in found.questions] == ["42", "a"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nonsense", "probe: q.jsonl:1: not a JSON object: nonsense"),
        ("[]", "probe: q.jsonl:1: found [], allowed: an object with either prompt or messages, and answer"),
        ('{"answer": "1"}', "allowed: an object with either prompt or messages, and answer"),
        ('{"prompt": "?", "messages": [], "answer": "1"}', "with either prompt or messages"),
        (
            '{"prompt": "?"}',
            "probe: q.jsonl:1: found answer null, allowed: text that is not empty, or a number",
        ),
        ('{"prompt": "?", "answer": " "}', "allowed: text that is not empty, or a number"),
        ('{"prompt": "?", "answer": true}', "allowed: text that is not empty, or a number"),
        (
            '{"prompt": " ", "answer": "1"}',
            "probe: q.jsonl:1: found prompt  , allowed: text that is not empty",
        ),
        ('{"messages": [], "answer": "1"}', "found messages [], allowed: a list of messages"),
        ('{"messages": [{"role": "user"}], "answer": "1"}', "probe: q.jsonl:1, messages, message 0: found"),
        ("", "probe: q.jsonl has no lines, allowed: at least one question with its answer"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(line: str, sentence: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        parse_probe("q.jsonl", line.encode(), "exact")
    assert sentence in str(error.value)


def test_numbers_need_a_number() -> None:
    with pytest.raises(
        InvalidConfig, match="found answer many, allowed with scorer number: one with a number"
    ):
        probe("number", {"prompt": "?", "answer": "many"})


def test_an_unknown_scorer_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="found scorer reward, allowed: exact, contains, number"):
        probe("reward", {"prompt": "?", "answer": "1"})
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_probe(tmp_path / "missing.jsonl", "exact")
