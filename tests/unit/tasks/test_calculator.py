import random
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_api.errors import TaskError
from rl_trainer.tasks.environments.calculator import MAX_BITS, Calculator, calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12+34", "46"),
        (" 12 + 34 ", "46"),
        ("2-5", "-3"),
        ("-2*-3", "6"),
        ("+4", "4"),
        ("(1+2)*3", "9"),
        ("7/2", "3.5"),
        ("1/3", "0.333333"),
        ("-2/3", "-0.666667"),
        ("0.1+0.2", "0.3"),
        ("1/10**9", "0"),
        ("-1/10**9", "0"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("-7%3", "2"),
        ("2**10", "1024"),
        ("2**-1", "0.5"),
        ("2**3**2", "512"),
        (".5+1.", "1.5"),
        ("0**0", "1"),
        ("9" * 40, "9" * 40),
        ("(" * 99 + "1" + ")" * 99, "1"),
    ],
)
def test_values(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "not arithmetic"),
        ("x", "not arithmetic"),
        ("__import__('os')", "not arithmetic"),
        ("1if 2else 3", "not arithmetic"),
        ("1j", "not arithmetic"),
        ("1e9", "not arithmetic"),
        ("0x10", "not arithmetic"),
        ("1_000", "not arithmetic"),
        ("(1,2)", "not arithmetic"),
        ("1(2)", "not arithmetic"),
        ("(1).real", "not arithmetic"),
        ("...", "not arithmetic"),
        ("()", "not arithmetic"),
        ("1+", "not arithmetic"),
        ("(1", "not arithmetic"),
        ("07+1", "not arithmetic"),
        ("1\n+1", "not arithmetic"),
        ("1/0", "division by zero"),
        ("1//0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2**0.5", "exponent is not whole"),
        ("9**9**9", "too large"),
        ("9**9**9**9", "too large"),
        ("2**-999999999", "too large"),
        ("9**" + "9" * 150, "too large"),
        ("2**400*2**400", "too large"),
        ("9" * 190, "too large"),
        ("1" * 201, "longer than 200 characters"),
    ],
)
def test_everything_else_is_refused(expression, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        calculate(expression)


@given(st.text("0123456789.+-*/%() ", max_size=220))
@settings(max_examples=300)
def test_any_expression_is_quick_and_quiet(expression):
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = calculate(expression)
        except ValueError:
            result = ""
    assert len(result) <= MAX_BITS
    assert time.perf_counter() - started < 2


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
    assert calculate(item["expression"]) == item["answer"]
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
