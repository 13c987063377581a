"""What comes back from other people's code, and what does not."""

import json
import math
import os
import pickle

import pytest

from rl_api.errors import ModelError, RewardError, TaskError
from rl_trainer.tasks.answers import CallError, Failure, decode, encode
from rl_trainer.tasks.types import Score, StepResult


class Sly(str):
    def __str__(self) -> str:
        return "another"


VALUES = [
    *(None, True, False, 0, -1, 2**200, 0.1, -0.0, 1e300, "", "\ud800 \x00 ä", b"\x00\xff"),
    *(
        [],
        [1, [2, (3, "x")]],
        (),
        ({"a": (1,)},),
        {},
        {"tuple": [1]},
        {"bytes": "no"},
        {1: "x", (1, 2): b"", None: 0},
    ),
    *(set(), {1, 2}, StepResult("more", 0.5, False, 2.0), StepResult(done=True)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_come_back_as_they_are(value):
    found = decode(encode(value))
    assert found == value
    assert type(found) is type(value)


def test_infinite_numbers_come_back_for_who_checks_them():
    assert decode(encode(math.inf)) == math.inf
    assert math.isnan(decode(encode(math.nan)))


def test_of_a_type_of_somebodys_its_plain_value_remains():
    found = decode(encode(Sly("own")))
    assert (found, type(found)) == ("own", str)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CallError("raised"), CallError),
        (TaskError("task.args: wrong"), TaskError),
        (RewardError("no"), RewardError),
        (ModelError("of another kind"), CallError),
    ],
)
def test_why_there_is_no_value(error, expected):
    found = decode(encode(Failure(error)))
    assert isinstance(found, Failure)
    assert type(found.error) is expected
    assert str(found.error) == str(error)


def test_sentences_have_an_end():
    assert len(str(decode(encode(Failure(CallError("x" * 100_000)))).error)) == 16_384


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "object, allowed: numbers, text, bytes, None, and lists"),
        ([print], "builtin_function_or_method, allowed: "),
        (nested(101), "it nests deeper than 100 levels"),
        ("x" * 2**24, "it takes 16777218 bytes, allowed: at most 16777216"),
    ],
)
def test_what_does_not_travel(value, message):
    with pytest.raises(ValueError, match=message):
        encode(value)


class Runs:
    def __reduce__(self):
        return (os.system, ("touch /tmp/it-was-run",))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (pickle.dumps(Runs()), "codec can't decode"),
        (pickle.dumps(1.0, 0), "Expecting value"),
        (b"[" * 10**6, "it nests deeper than 100 levels"),
        (b"[" * 200 + b"]" * 200, "it nests deeper than 100 levels"),
        (b"9" * 10**5, "Exceeds the limit"),
        (b"{}", "{}, which is no answer"),
        (b'{"os.system": ["true"]}', "which is no answer"),
        (b'{"bytes": "YQ==", "tuple": []}', "which is no answer"),
        (b'{"bytes": "?"}', "base64"),
        (b'{"dict": [1]}', "a dict whose items are no pairs"),
        (b'{"dict": [[[], 1]]}', "unhashable"),
        (b'{"set": [[]]}', "unhashable"),
        (b'{"step": ["", 1, 0, 0]}', "which is no answer"),
        (b'{"step": [1, 1, true, 0]}', "which is no answer"),
        (b'{"step": ["", NaN, true, 0]}', "reward or delay_seconds is no finite number"),
        (b'{"step": ["", 1, true, -1]}', "reward or delay_seconds is no finite number"),
        (b'{"step": ["", %s, true, 0]}' % (b"1" * 400), "too large"),
        (b'{"failure": ["SystemExit", "bye"]}', "which is no answer"),
        (b'{"failure": ["CallError", 1]}', "which is no answer"),
        (json.dumps({"set": list(range(1001))}).encode(), "with more than 1000 keys that are no text"),
        (
            json.dumps({"dict": [[i, 0] for i in range(1001)]}).encode(),
            "with more than 1000 keys that are no text",
        ),
    ],
    ids=range(23),
)
def test_nothing_else_is_made_of_what_comes_back(data, message):
    with pytest.raises(ValueError, match=message):
        decode(data)
    assert not os.path.exists("/tmp/it-was-run")


def test_a_score_is_not_the_environments_to_give():
    assert decode(encode(StepResult(done=True, score=Score(1e9, True)))).score is None


def test_words_may_be_as_many_as_they_are():
    assert len(decode(encode({str(i): i for i in range(5000)}))) == 5000
