"""Prompts that begin alike go to one replica, as long as it has not more than its share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rl_serve.prefixes import key_of, ranked

REPLICAS = [f"replica-{number}" for number in range(4)]
QUESTION = "Which of these numbers is a prime? " * 20


def key(**fields: Any) -> str | None:
    return key_of(json.dumps(fields).encode())


def chat(*contents: str, system: str = "Be brief.") -> str | None:
    roles = ("user", "assistant")
    said = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    return key(messages=[{"role": "system", "content": system}, *said])


def order(name: str, loads: dict[str, int] | None = None) -> list[str]:
    return ranked(name, loads or dict.fromkeys(REPLICAS, 0), str)


@pytest.mark.parametrize("depth", [*range(800, 1000, 5), 100_000])
def test_what_is_nested_too_deeply_is_led_anywhere(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    for body in (f'{{"prompt": {deep}}}', f'{{"messages": [{{"role": "user", "content": {deep}}}]}}'):
        found = key_of(body.encode())
        assert found is None or len(found) == 16


def test_a_conversation_is_known_by_its_first_question() -> None:
    first = chat(QUESTION)
    assert first is not None
    assert chat(QUESTION, "The second.", "Why?") == first
    assert chat(QUESTION, "The second.", "Why?", "It is 7.", "Thanks", system="Answer at length.") == first
    assert chat("Another one?") != first
    parts = [{"type": "text", "text": QUESTION}]
    assert key(messages=[{"role": "user", "content": parts}]) == key(
        messages=[{"role": "user", "content": parts}, {"role": "assistant", "content": "The second."}]
    )


def test_without_a_question_the_first_message_counts() -> None:
    assert key(messages=[{"role": "system", "content": "a"}]) != key(
        messages=[{"role": "system", "content": "b"}]
    )


def test_prompts_are_known_by_how_they_begin() -> None:
    assert key(prompt=QUESTION + "3, 4") == key(prompt=QUESTION + "5, 6") == key(prompt=[QUESTION, "x"])
    assert key(prompt=QUESTION) != key(prompt="x" + QUESTION)
    tokens = list(range(1000))
    assert key(prompt=tokens) == key(prompt=[*tokens, 7]) == key(prompt=[tokens, [1]])
    assert key(prompt=tokens) != key(prompt=tokens[1:])


def test_the_field_of_openais_says_it_instead() -> None:
    one, other = key(prompt="a", prompt_cache_key="team"), key(prompt="b", prompt_cache_key="team")
    assert one == other != key(prompt="a")
    assert key(prompt="a", prompt_cache_key=None) == key(prompt="a", prompt_cache_key=5) == key(prompt="a")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"{}",
        b"\xff",
        b'{"prompt": ""}',
        b'{"prompt": 5}',
        b'{"prompt": []}',
        b'{"messages": []}',
        b'{"messages": ["hello"]}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": 5}]}',
    ],
)
def test_of_what_is_no_prompt_nothing_is_said(body: bytes) -> None:
    assert key_of(body) is None


def test_half_a_character_is_no_error() -> None:
    assert key_of(rb'{"prompt": "\ud800"}') is not None


def test_keys_spread_over_all_replicas_and_stay_where_they_are() -> None:
    firsts = {str(number): order(str(number))[0] for number in range(400)}
    counts = [list(firsts.values()).count(replica) for replica in REPLICAS]
    assert min(counts) > 60
    left = dict.fromkeys(REPLICAS[1:], 0)
    for name, first in firsts.items():
        if first != REPLICAS[0]:
            assert order(name, left)[0] == first
    moved = [order(name, left)[0] for name, first in firsts.items() if first == REPLICAS[0]]
    assert {*moved} == {*REPLICAS[1:]}


def test_a_replica_with_more_than_its_share_is_passed_over() -> None:
    usual = order("k")
    idle = dict.fromkeys(REPLICAS, 0)
    # The mean is 2.25 with the new one: its share is ceil(1.25 * 2.25) + 4 = 7.
    assert order("k", idle | {usual[0]: 6})[0] == usual[0]
    assert order("k", idle | {usual[0]: 8}) == [*usual[1:], usual[0]]
    # Where all have much to do, nobody has more than a share.
    assert order("k", dict.fromkeys(REPLICAS, 50)) == usual
    assert order("k", {usual[0]: 90, usual[1]: 80, usual[2]: 0, usual[3]: 0}) == [
        *usual[2:],
        usual[1],
        usual[0],
    ]


def test_bursts_of_one_key_are_shared() -> None:
    loads = dict.fromkeys(REPLICAS, 0)
    for _ in range(200):
        loads[order("k", loads)[0]] += 1
    assert max(loads.values()) <= 1.25 * 50 + 5


def test_no_replica_is_no_order() -> None:
    assert ranked("k", {}, str) == []
