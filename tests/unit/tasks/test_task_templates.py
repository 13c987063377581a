import pytest

from rl_api.errors import TaskError
from rl_trainer.tasks.templates import Template, apply_view

METADATA = {
    "numbers": ["5.0", "-2.50", "0.0"],
    "direction": "ascending",
    "matrix": [[1, 2], [3, 4]],
    "nested": {"a b": {"0": "zero"}},
    "rate": 0.25,
    7: "seven",
}


def render(text: str, question: str = "What?", answer: str | None = "42", metadata=METADATA) -> str:
    return Template(text, "task.promptTemplate").render(question, answer, metadata)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{question}", "What?"),
        ("Q: {question}\nA: {answer}", "Q: What?\nA: 42"),
        ("{{{answer}}}", "{42}"),
        ("{metadata[direction]}", "ascending"),
        ("{metadata.direction}", "ascending"),
        ("{metadata[direction][0]}", "a"),
        ("{metadata[direction]:first|upper}", "A"),
        ("{metadata[numbers][1]}", "-2.50"),
        ("{metadata[numbers]:number|join , }", "5, -2.5, 0"),
        ("{metadata[numbers]:number|join }", "5-2.50"),
        ("{metadata[numbers]:join}", "5.0-2.500.0"),
        ("{metadata[numbers]:reverse|number|join  }", "0 -2.5 5"),
        ("{metadata[matrix]:join }", "1234"),
        ("{metadata[matrix]:json}", "[[1, 2], [3, 4]]"),
        ("{metadata[matrix][1][0]}", "3"),
        ("{metadata[nested][a b][0]}", "zero"),
        ("{metadata[7]}", "seven"),
        ("{metadata[rate]:.1%}", "25.0%"),
        ("{metadata[rate]:>6}", "  0.25"),
        ("{metadata[direction]!r}", "'ascending'"),
        ("{answer:reverse}", "24"),
        ("{question:strip|lower}", "what?"),
    ],
)
def test_renders(template, expected):
    assert render(template) == expected


def test_a_missing_answer_reads_as_empty():
    assert render("[{answer}]", answer=None) == "[]"


@pytest.mark.parametrize(
    ("value", "shown"), [("1e2", "100"), (3.0, "3"), (-0.0, "0"), ("007", "7"), ("1.250", "1.25")]
)
def test_number_view(value, shown):
    assert apply_view(value, "number") == shown


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{metadata[foo]}", r"task.promptTemplate: metadata has no 'foo' but 7, direction, matrix"),
        ("{metadata[nested][x]}", r"metadata\[nested\] has no 'x' but a b"),
        ("{metadata[numbers][3]}", r"metadata\[numbers\] has 3 elements, so no number 3"),
        ("{metadata[numbers][x]}", r"metadata\[numbers\] is list and has no 'x'"),
        ("{metadata[direction].upper}", r"metadata\[direction\] is str and has no 'upper'"),
        ("{other}", "the template's keys has no 'other' but answer, metadata, question"),
        ("{0}", "has no '0'"),
        ("{metadata[]}", "is not a field"),
        ("{metadata[direction]:number}", "'ascending' is not a number"),
        ("{metadata[direction]:join ,}", "join needs a list, not str"),
        ("{metadata[rate]:first}", "first needs a list or text, not float"),
        ("{metadata[numbers]:number|shout}", "unknown view 'shout', allowed: join, "),
        ("{metadata[direction]:d}", "Unknown format code"),
        ("{question", "expected '}'"),
    ],
)
def test_errors_name_the_field_and_what_there_is(template, message):
    with pytest.raises(TaskError, match=message):
        render(template)


def test_first_of_nothing_and_infinite_numbers():
    with pytest.raises(ValueError, match="not empty"):
        apply_view([], "first")
    with pytest.raises(ValueError, match="finite"):
        apply_view("inf", "number")
