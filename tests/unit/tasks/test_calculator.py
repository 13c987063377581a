import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api.errors import TaskError
from rl_trainer.tasks.arithmetic import evaluate, shown
from rl_trainer.tasks.environments.calculator import Calculator


@given(st.text(max_size=300))
def test_a_turn_never_raises(text):
    result = Calculator({"question": "1+1="}, {}).step(text)
    assert result.done or result.observation.endswith("\n")


@pytest.mark.parametrize(
    ("turn", "observation"),
    [
        ("<12+34>", "46\n"),
        ("let me see <1+1> and <2+2>", "2\n"),
        ("<1/0>", "error: division by zero\n"),
        ("<>", "error: not arithmetic\n"),
        ("<a>", "error: not arithmetic\n"),
        ("<<1>", "1\n"),
    ],
)
def test_calls(turn, observation):
    result = Calculator({"question": "1+1="}, {}).step(turn)
    assert (result.observation, result.done) == (observation, False)


@pytest.mark.parametrize("turn", ["46", "", "<1+1", "1+1>", ">1<"])
def test_a_turn_without_a_call_ends_the_dialogue(turn):
    assert Calculator({"question": "1+1="}, {}).step(turn).done


@given(
    st.integers(0, 2**31),
    st.integers(1, 5),
    st.integers(0, 5),
    st.integers(-50, 50),
    st.integers(2, 50),  # with 0 alone, nearly everything would be divided by it
    st.text("+-*/%", min_size=1, max_size=5),
)
def test_questions_follow_the_arguments_and_their_solution_is_right(seed, low, more, least, span, operators):
    args = {
        "min_operands": low,
        "max_operands": low + more,
        "min_value": least,
        "max_value": least + span,
        "operators": operators,
    }
    item = Calculator.generate(random.Random(seed), args)
    assert item["question"] == f"{item['expression']}="
    assert shown(evaluate(item["expression"])) == item["answer"]
    environment = Calculator(item, args)
    assert environment.reset() == item["question"]
    call, answer = Calculator.solution(item, args)
    assert environment.step(call).observation == f"{item['answer']}\n"
    assert environment.step(answer).done
    assert answer == item["answer"]


def test_one_operand_and_the_default():
    assert set(Calculator.generate(random.Random(0), {})["expression"]) <= set("0123456789+-")
    item = Calculator.generate(random.Random(0), {"min_operands": 1, "max_operands": 1})
    assert item["expression"].isdecimal()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"digits": 2},
            r"task.args.digits: calculator has no such argument; it has min_operands, max_operands",
        ),
        ({"max_value": 1.5}, r"task.args.max_value: found 1.5, allowed: a whole number"),
        ({"max_value": True}, r"task.args.max_value: found True, allowed: a whole number"),
        ({"max_value": 10**10}, r"task.args.max_value: found 10000000000, allowed: .* at most 10\^9"),
        ({"min_value": 100}, r"task.args.min_value: found 100, allowed: at most max_value \(99\)"),
        ({"operators": "^"}, r"task.args.operators: found '\^', allowed: characters of"),
        ({"operators": ""}, r"task.args.operators: found '', allowed"),
        (
            {"min_operands": 3},
            r"task.args: found min_operands 3 and max_operands 2, allowed: 1 <= min <= max <= 10",
        ),
        ({"max_value": 0, "operators": "/"}, r"calculator found no question with an answer in 1000 tries"),
    ],
)
def test_wrong_arguments(args, message):
    with pytest.raises(TaskError, match=message):
        Calculator.generate(random.Random(0), args)
