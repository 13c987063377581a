"""Patterns and selectors of a profile."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import pytest

from rl_api.allow import AllowSpec, SelectorSpec, any_matches, matches, place_matches
from rl_api.base import amount


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("*", "any/thing:1", True),
        ("a*", "a", True),
        ("a*", "ba", False),
        ("*a", "ba", True),
        ("*a", "ab", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*b*b", "ab", False),
        ("registry.example/*", "registryXexample/a", False),
        ("registry.example/*", "registry.example/a/b@sha256:0", True),
    ],
)
def test_a_star_stands_for_any_text(pattern: str, text: str, expected: bool) -> None:
    assert matches(pattern, text) is expected
    assert any_matches(["other", pattern], text) is expected


def test_no_pattern_takes_long() -> None:
    begun = time.thread_time()
    assert not matches("*a" * 120 + "b", "a" * 60_000)
    assert time.thread_time() - begun < 1.0


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("s3://bucket", True),
        ("s3://bucket/", True),
        ("s3://bucket/team", True),
        ("s3://bucket2/team", False),
        ("s3://bucket/team/../../other", False),
        ("s3://bucket/team..a", True),
    ],
)
def test_places_end_where_they_end(place: str, expected: bool) -> None:
    assert place_matches(["s3://bucket/*"], place) is expected


@pytest.mark.parametrize(
    ("pattern", "url", "expected"),
    [
        ("https://*.example.com", "https://a.example.com", True),
        ("https://*.example.com", "https://a.b.example.com/", True),
        ("https://*.example.com", "https://attacker.net/.example.com", False),
        ("https://*.example.com", "https://a.example.com/path", False),
        ("https://*.example.com", "http://a.example.com", False),
        ("https://*/team-a/*", "https://gateway/team-a/serving", True),
        ("https://*/team-a/*", "https://gateway/team-a", True),
        ("https://*/team-a/*", "https://attacker/x/team-a/serving", False),
        ("https://*/team-a/*", "https://gateway/team-a/../team-b", False),
        ("http://inference.serving:8000", "http://inference.serving:8000/", True),
        ("http://inference.serving:8000", "http://inference.serving:80001", False),
        ("http://inference.serving:*", "http://inference.serving:9000", True),
        ("http://[fd00::8]:8000", "http://[fd00::8]:8000", True),
        ("http://[fd00::*]:8000", "http://[fd00::1:2]:8000", True),
        ("http://[fd00::8]:8000", "http://f:8000", False),
    ],
)
def test_a_star_in_the_host_of_a_server_does_not_run_into_the_path(
    pattern: str, url: str, expected: bool
) -> None:
    allow = AllowSpec.model_validate({"endpoints": [{"url": pattern}]})
    assert bool(allow.endpoints_at(url)) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "team", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "team", "operator": "In", "values": ["b"]}, False),
        ({"key": "team", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "none", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "none", "operator": "In", "values": ["a"]}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "none", "operator": "Exists"}, False),
        ({"key": "team", "operator": "DoesNotExist"}, False),
        ({"key": "none", "operator": "DoesNotExist"}, True),
    ],
)
def test_labels_are_compared_as_kubernetes_does(expression: dict[str, Any], expected: bool) -> None:
    selector = SelectorSpec.model_validate({"matchExpressions": [expression]})
    assert selector.matches({"team": "a"}) is expected
    assert SelectorSpec().matches({"team": "a"}), "an empty selector selects all"


def test_a_selector_reads_well() -> None:
    said = {"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}
    assert str(SelectorSpec.model_validate(said)) == "a=1, b=2, c Exists"


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("1", "1"), ("1.5Gi", "1610612736"), ("500m", "0.5"), ("3k", "3000"), ("2Ki", "2048"), ("1P", "1e15")],
)
def test_amounts(quantity: str, expected: str) -> None:
    assert amount(quantity) == Decimal(expected)
