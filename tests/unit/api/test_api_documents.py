from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api.documents import dump_yaml, load_documents, load_value
from rl_api.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        ("-2.5e-3", -0.0025),
        ("1.0", 1.0),
        (".5", 0.5),
        ("3.", 3.0),
        (".inf", math.inf),
        ("7", 7),
        ("-7", -7),
        ("0", 0),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        # a clock time, a date, a version and an address are text, as kubectl reads them
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("1.2.3", "1.2.3"),
        ("10.0.0.1", "10.0.0.1"),
        ("90s", "90s"),
        ("e5", "e5"),
        ("{a: [1, b]}", {"a": [1, "b"]}),
    ],
)
def test_scalars_are_read_as_kubernetes_tools_read_them(text: str, value: object) -> None:
    read = load_value(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "f.yaml: line 1, column 6: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml: line 3, column 1: not valid YAML: the key 'a' is there twice"),
        ("a: {b: 1, b: 2}", "f.yaml: line 1, column 11: not valid YAML: the key 'b' is there twice"),
        ("on: 1", "f.yaml: line 1, column 1: not valid YAML: the key 'on' is not text, put it in quotes"),
        ("a: {1: x}", "f.yaml: line 1, column 5: not valid YAML: the key '1' is not text, put it in quotes"),
        ("? [a]\n: b", "f.yaml: line 1, column 3: not valid YAML: a key is not text, put it in quotes"),
        ("a: b: c", "f.yaml: line 1, column 5: not valid YAML: mapping values are not allowed here"),
        (
            "\ta: 1",
            "f.yaml: line 1, column 1: not valid YAML: found character '\\t' that cannot start any token",
        ),
        ("a: *b", "f.yaml: line 1, column 4: not valid YAML: found undefined alias 'b'"),
        ("a: &b [*b]", "f.yaml: line 1, column 4: not valid YAML: found unconstructable recursive node"),
        (
            "a: !!python/object:os.system x",
            "f.yaml: line 1, column 4: not valid YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'",
        ),
        (
            "a: !!set {b}",
            "f.yaml: line 1, column 4: not valid YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:set'",
        ),
        (
            "a: \x07",
            "f.yaml: not valid YAML: unacceptable character #x0007: special characters are not allowed",
        ),
        ("[" * 5000, "f.yaml: not valid YAML: nested too deeply"),
    ],
)
def test_what_is_no_yaml_is_a_sentence_with_line_and_column(text: str, sentence: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load_documents(text, "f.yaml")
    assert str(caught.value) == sentence


def test_a_number_beyond_all_use_is_a_sentence() -> None:
    with pytest.raises(InvalidConfig, match=r"^f\.yaml: not valid YAML: .*4300"):
        load_documents(f"a: {'9' * 5000}", "f.yaml")


def test_empty_documents_are_left_out_and_the_others_keep_their_number() -> None:
    assert load_documents("---\n# nothing\n---\na: 1\n---\n---\nb: 2\n", "f") == [
        (2, {"a": 1}),
        (4, {"b": 2}),
    ]
    assert load_documents("# only a comment\n", "f") == []


def test_merge_keys_work_and_give_way_to_the_objects_own() -> None:
    text = "base: &base {a: 1, b: 2}\nthere: {<<: *base, b: 3}\n"
    assert load_value(text)["there"] == {"a": 1, "b": 3}


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN.filter(lambda value: value is not None))
def test_what_is_written_is_read_back(value: Any) -> None:
    assert load_value(dump_yaml(value)) == value


@pytest.mark.parametrize(
    "text",
    ["1e-6", "1E5", "yes", "2026-01-31", "1:30", "null", "007", "0x1", "[a", "a: b", "<<", "a\x85b", "ü"],
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert load_value(dump_yaml({text: text})) == {text: text}


def test_equal_values_are_written_out_each_time() -> None:
    shared = {"cpu": 1}
    assert "&" not in dump_yaml({"a": shared, "b": shared})
