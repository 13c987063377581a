import math
import re
import sys
import time

import psutil
import pytest
from hanging_host import Host
from hypothesis import given
from hypothesis import strategies as st

from rl_api.errors import RewardError, TaskError
from rl_api.task import RewardRule
from rl_trainer.tasks.killable import KillableProcess
from rl_trainer.tasks.rewards import Rewards
from rl_trainer.tasks.types import Prompt

PROMPT = Prompt(7, "What is 6 * 7?", "42", {"prompt": "What is 6 * 7?", "answer": "42", "level": 3})


def rule(**fields) -> RewardRule:
    return RewardRule.model_validate(fields)


def reward(rules: list[RewardRule], completion: str, **keywords) -> float:
    return sum(Rewards(rules, **keywords).evaluate(PROMPT, completion).values())


@pytest.fixture
def my_rewards(tmp_path):
    """Writes a reward module; returns (text, function) -> rule."""

    def make(body: str, **fields) -> Rewards:
        (tmp_path / "my_rewards.py").write_text(f"import math\ndef f(prompt, completion, answer):\n{body}\n")
        return Rewards([rule(rule="function", function="my_rewards:f", **fields)], tmp_path)

    return make


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

    def scorer(item, completion, seconds):
        asked.append((item, completion, seconds))
        return 0.25

    rules = [rule(rule="task", right=4, wrong=-4, timeout="3s")]
    assert reward(rules, "x", scorer=scorer) == pytest.approx(-2)
    assert Rewards(rules, scorer=scorer).own_score(PROMPT, "x") == 0.25
    assert asked == [(PROMPT.item, "x", 3.0)] * 2


def test_a_task_without_a_scorer_has_no_score_of_its_own():
    assert Rewards([rule()]).own_score(PROMPT, "x") is None
    assert Rewards([rule()], scorer=lambda *_: 0.5).own_score(PROMPT, "x") == 0.5


def test_the_environments_own_score_stands_for_the_scorer():
    def never(item, completion, seconds):
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


def test_what_counts_as_a_number(my_rewards):
    values = "[1, 1.0, True, numpy.float32(1), numpy.int64(1), numpy.array(1.0)]"
    rewards = my_rewards(f"    import numpy; return {values}[int(completion)]")
    found = [rewards.evaluate(PROMPT, str(number))["my_rewards:f"] for number in range(6)]
    assert found == [1.0] * 6
    assert {type(value) for value in found} == {float}


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


def test_a_function_that_hangs_is_killed(my_rewards, tmp_path):
    for seconds in (1, 10, 60):  # on a busy machine it has not come to its loop after the first
        rewards = my_rewards(
            f"    import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
            "    while completion == 'hang':\n        pass\n    return 1",
            timeout=f"{seconds}s",
        )
        started = time.monotonic()
        with pytest.raises(RewardError) as error:
            rewards.evaluate(PROMPT, "hang")
        assert time.monotonic() - started < seconds + 60
        if re.search(r"my_rewards.py:[45],", str(error.value)):
            break
    assert re.search(
        rf"reward my_rewards:f has not returned after {seconds}s \(its timeout\) and stands at "
        r".*my_rewards.py:[45], at prompt 7",
        str(error.value),
    )
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert rewards.evaluate(PROMPT, "go on") == {"my_rewards:f": 1.0}


def test_a_function_that_ends_its_process(my_rewards):
    rewards = my_rewards("    import os\n    if completion == 'end': os._exit(4)\n    return 1")
    with pytest.raises(RewardError, match=r"reward my_rewards:f has ended its process \(exit code 4\), at"):
        rewards.evaluate(PROMPT, "end")
    assert rewards.evaluate(PROMPT, "go on") == {"my_rewards:f": 1.0}


def test_a_module_is_imported_where_it_can_be_killed_and_nowhere_else(my_rewards):
    my_rewards("    return 1")
    assert "my_rewards" not in sys.modules


def test_a_module_that_ends_its_process_when_it_is_imported(tmp_path):
    (tmp_path / "ends_at_once.py").write_text("import os; os._exit(3)\n")
    with pytest.raises(
        TaskError,
        match=r"^task.rewards\[0\].function: ends_at_once:f has ended its process \(exit code 3\) while it is loaded",
    ):
        Rewards([rule(rule="function", function="ends_at_once:f")], tmp_path)


def test_a_scorer_that_hangs_or_gives_no_number():
    host = KillableProcess().target(Host)
    host.make()
    with pytest.raises(
        RewardError, match=r"reward task has not returned after 50ms \(its timeout\) and stands at .*:\d+, at"
    ):
        reward(
            [rule(rule="task", timeout="50ms")],
            "x",
            scorer=lambda item, completion, seconds: host.call(seconds, "sleeps"),
        )
    with pytest.raises(RewardError, match="reward task returned nan"):
        reward([rule(rule="task")], "x", scorer=lambda item, completion, seconds: math.nan)


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


def test_a_function_of_two_arguments_is_refused(tmp_path):
    (tmp_path / "rewards_of_two.py").write_text("def f(completion, answer): return 1\n")
    with pytest.raises(
        TaskError,
        match=r"task.rewards\[0\].function: rewards_of_two:f takes \(completion, answer\), allowed: three",
    ):
        Rewards([rule(rule="function", function="rewards_of_two:f")], tmp_path)


def test_a_pattern_only_the_other_matcher_understands():
    with pytest.raises(TaskError, match=r"task.rewards\[0\].pattern: .* is no regular expression"):
        Rewards([rule(rule="regex", pattern=r"\p{NoSuchProperty}")])
