from __future__ import annotations

from operator_worlds import refused

from rl_api.problems import Problem
from rl_operator.plan.refused import Refused


def test_many_problems_make_a_message_of_bounded_length() -> None:
    spec = {"sampler": {f"wrong{number}" + "x" * 50: 1 for number in range(60)}}
    message = refused(spec).message
    assert len(message) < 2100
    assert message.endswith("(60 problems)")


def test_each_problem_has_its_place_and_its_sentence() -> None:
    problems = [Problem(("spec", "seed"), "found -1"), Problem(("spec", "sampler", "pools", 0), "found 'x'")]
    found = Refused.because("InvalidSpec", problems, "profile a: ")
    assert found == Refused("InvalidSpec", "profile a: spec.seed: found -1; spec.sampler.pools[0]: found 'x'")


def test_a_message_is_cut_where_it_is_longer_than_allowed() -> None:
    def message(length: int) -> str:
        sentence = "x" * (length - len("spec.seed: "))
        return Refused.because("InvalidSpec", [Problem(("spec", "seed"), sentence)]).message

    assert message(2000) == "spec.seed: " + "x" * 1989
    assert message(2001) == "spec.seed: " + "x" * 1959 + "... (1 problems)"
