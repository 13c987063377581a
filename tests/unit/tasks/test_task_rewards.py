import math
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api.errors import RewardError, TaskError
from rl_api.task import RewardRule
from rl_trainer.tasks.rewards import Rewards
from rl_trainer.tasks.types import Prompt

PROMPT = Prompt(7, "What is 6 * 7?", "42", {"prompt": "What is 6 * 7?", "answer": "42", "level": 3})


def rule(**fields) -> RewardRule:
    return RewardRule.model_validate(fields)


def reward(rules: list[RewardRule], completion: str, **keywords) -> float:
    return sum(Rewards(rules, **keywords).evaluate(PROMPT, completion).values())


@pytest.fixture
def my_rewards(tmp_path, monkeypatch):
    """Writes a reward module; returns (text, function) -> rule."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(body: str, **fields) -> Rewards:
        (tmp_path / "my_rewards.py").write_text(f"import math\ndef f(prompt, completion, answer):\n{body}\n")
        sys.modules.pop("my_rewards", None)
        return Rewards([rule(rule="function", function="my_rewards:f", **fields)], tmp_path)

    yield make
    sys.modules.pop("my_rewards", None)


@pytest.mark.parametrize(
    ("fields", "completion", "value"),
    [
        ({}, "42", 1),
        ({}, "41", 0),
        ({"right": 5, "wrong": -5}, "42", 5),
        ({"right": 5, "wrong": -5}, "41", -5),
        ({"right": 5, "wrong": -5, "weight": 0.1}, "41", -0.5),
        ({"rule": "number"}, "it is 42.0", 1),
        ({"rule": "number"}, "it is 42.1", 0),
        ({"rule": "regex", "pattern": r"\d"}, "x", 0),
        ({"rule": "regex", "pattern": r"= (\d+)"}, "= 42", 1),
        ({"rule": "regex", "pattern": r"= (\d+)"}, "= 43", 0),
        ({"rule": "fraction"}, "43", 0.5),
        ({"rule": "fraction", "right": 5, "wrong": -5}, "43", 0),
        ({"rule": "fraction", "right": 2, "wrong": 1}, "42", 2),
    ],
)
def test_one_part(fields, completion, value):
    assert reward([rule(**fields)], completion) == pytest.approx(value)


def test_the_task_scorer_is_asked_with_the_item():
    asked = []

    def scorer(item, completion):
        asked.append((item, completion))
        return 0.25

    assert reward([rule(rule="task", right=4, wrong=-4)], "x", scorer=scorer) == pytest.approx(-2)
    assert asked == [(PROMPT.item, "x")]


def test_the_environments_own_score_stands_for_the_scorer():
    def never(item, completion):
        raise AssertionError

    rewards = Rewards([rule(rule="task"), rule()], scorer=never)
    assert rewards.evaluate(PROMPT, "42", ["<6*7>", "42"], own_score=0.5) == {"task": 0.5, "exactMatch": 1.0}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["exactMatch", "number", "fraction"]), *[st.floats(-5, 5) for _ in range(3)]
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["42", "43", "", "4", "x42"]),
)
def test_parts_add_up_and_have_their_own_names(parts, completion):
    rules = [rule(rule=name, weight=w, right=r, wrong=x) for name, w, r, x in parts]
    shares = Rewards(rules).evaluate(PROMPT, completion)
    assert len(shares) == len(rules)
    alone = [reward([one], completion) for one in rules]
    assert list(shares.values()) == pytest.approx(alone)


def test_repeated_parts_are_numbered():
    assert list(Rewards([rule(), rule(weight=2), rule()]).evaluate(PROMPT, "42")) == [
        "exactMatch",
        "exactMatch#2",
        "exactMatch#3",
    ]


def test_a_function_gets_prompt_completion_and_answer(my_rewards):
    rewards = my_rewards(
        "    return [prompt, completion, answer] == "
        + repr(
            [
                {
                    "index": 7,
                    "text": PROMPT.text,
                    "messages": None,
                    "answer": "42",
                    "item": PROMPT.item,
                    "turns": ["41"],
                },
                "41",
                "42",
            ]
        )
    )
    assert rewards.evaluate(PROMPT, "41") == {"my_rewards:f": 1.0}


def test_a_function_sees_all_turns(my_rewards):
    rewards = my_rewards("    return len(prompt['turns'])", weight=0.5)
    assert rewards.evaluate(PROMPT, "c", ["a", "b", "c"]) == {"my_rewards:f": 1.5}


def test_a_function_may_return_several_parts(my_rewards):
    rewards = my_rewards("    return {'short': len(completion) < 5, 'right': completion == answer}", weight=2)
    assert rewards.evaluate(PROMPT, "42") == {"short": 2.0, "right": 2.0}


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1), np.int64(1), np.array(1.0)])
def test_what_counts_as_a_number(value, monkeypatch):
    module = type(sys)("numbers_of_mine")
    module.f = lambda prompt, completion, answer: value
    monkeypatch.setitem(sys.modules, "numbers_of_mine", module)
    assert reward([rule(rule="function", function="numbers_of_mine:f")], "x") == 1.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return math.nan", r"returned nan, allowed: a finite number"),
        ("    return -math.inf", r"returned -inf, allowed: a finite number"),
        ("    return {'a': 1, 'b': math.nan}", r"returned nan for 'b', allowed: a finite number"),
        ("    pass", r"returned None, allowed: a number, or a dict of numbers"),
        ("    return '1'", r"returned '1' \(str\), allowed: a number"),
        ("    return [1]", r"returned \[1\] \(list\), allowed: a number"),
        ("    return 10**400", r"returned int, which is no number"),
        ("    import numpy; return numpy.ones(2)", r"returned ndarray, which is no number"),
        ("    x = 1\n    raise KeyError('score')", r"raised KeyError: 'score' \(.*my_rewards.py:4\)"),
        ("    return int(completion)", r"raised ValueError: invalid literal .* \(.*my_rewards.py:3\)"),
        ("    return math.sqrt(-1)", r"raised ValueError: math domain error \(.*my_rewards.py:3\)"),
        (
            "    import json; return json.loads(completion)",
            r"raised JSONDecodeError: .* \(.*my_rewards.py:3\)",
        ),
        ("    raise SystemExit('enough')", r"raised SystemExit: enough"),
    ],
)
def test_what_a_function_does_wrong_is_a_sentence(my_rewards, body, message):
    with pytest.raises(
        RewardError, match=r"^reward my_rewards:f " + message + r".*, at prompt 7 \('What is 6 \* 7\?'\)$"
    ):
        my_rewards(body).evaluate(PROMPT, "x")


def test_a_function_that_hangs_is_stopped_waiting_for(my_rewards, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(threading, "release_of_the_test", release, raising=False)
    rewards = my_rewards(
        "    import threading\n    if completion == 'hang':\n"
        "        threading.release_of_the_test.wait()\n    return 1",
        timeout="100ms",
    )
    started = time.monotonic()
    with pytest.raises(
        RewardError,
        match=r"reward my_rewards:f has not returned after 100ms \(its timeout\) and stands at "
        r".*my_rewards.py:5, at prompt 7",
    ):
        rewards.evaluate(PROMPT, "hang")
    assert time.monotonic() - started < 5
    assert rewards.evaluate(PROMPT, "go on") == {"my_rewards:f": 1.0}
    release.set()


def test_a_scorer_that_hangs_or_gives_no_number():
    release = threading.Event()
    with pytest.raises(
        RewardError, match=r"reward task has not returned after 50ms \(its timeout\) and stands at .*:\d+, at"
    ):
        reward([rule(rule="task", timeout="50ms")], "x", scorer=lambda item, completion: release.wait())
    release.set()
    with pytest.raises(RewardError, match="reward task returned nan"):
        reward([rule(rule="task")], "x", scorer=lambda item, completion: math.nan)


def test_a_pattern_that_takes_for_ever_is_a_sentence():
    slow = rule(rule="regex", pattern=r"(a|aa)+$", timeout="50ms")
    with pytest.raises(
        RewardError,
        match=r"reward regex is undecided after 50ms .* '\(a\|aa\)\+\$' takes too long .* prompt 7",
    ):
        reward([slow], "a" * 80 + "b")


def test_an_answer_without_a_number_is_a_sentence():
    prompt = Prompt(3, "colour?", "blue", {})
    with pytest.raises(
        RewardError, match="reward number cannot be used: the answer 'blue' has no number, at prompt 3"
    ):
        Rewards([rule(rule="number")]).evaluate(prompt, "7")


def test_rule_task_needs_a_scorer():
    with pytest.raises(
        TaskError, match=r"task.rewards\[1\].rule: found 'task', but this environment has no scorer"
    ):
        Rewards([rule(), rule(rule="task")])


def test_a_function_of_two_arguments_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "rewards_of_two.py").write_text("def f(completion, answer): return 1\n")
    with pytest.raises(
        TaskError,
        match=r"task.rewards\[0\].function: rewards_of_two:f takes \(completion, answer\), allowed: three",
    ):
        Rewards([rule(rule="function", function="rewards_of_two:f")], tmp_path)


def test_a_pattern_only_the_other_matcher_understands():
    with pytest.raises(TaskError, match=r"task.rewards\[0\].pattern: .* is no regular expression"):
        Rewards([rule(rule="regex", pattern=r"\p{NoSuchProperty}")])
