"""What `make mutants` changes in a file, and what it leaves alone."""

from __future__ import annotations

import ast

from mutations import mutants

SOURCE = '''\
"""A module."""
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    limit: int = 1


@dataclasses.dataclass(frozen=True)
class Budget:
    """What is left."""

    left: float | None = -0.5


def spend(budget, amount):
    """Of a budget."""
    if budget.left is None or not amount:
        return budget.left
    if amount > budget.left:
        raise ValueError(f"ä {amount + 1} " + "is too much")
    return [pair for pair in zip("ab", range(amount), strict=True) if pair[0] in "b"]
'''


def changed_lines(source: str) -> dict[str, set[str]]:
    """By kind of change, the lines that take the place of others."""
    found: dict[str, set[str]] = {}
    for mutant in mutants("budget.py", source):
        ast.parse(mutant.source)
        (line,) = [line[1:].strip() for line in mutant.diff(source).splitlines()[3:] if line[0] == "+"]
        found.setdefault(mutant.kind, set()).add(line)
    return found


def test_every_kind_of_change():
    assert changed_lines(SOURCE) == {
        "sign": {"left: float | None = 0.5"},
        "constant": {
            "left: float | None = -1.5",
            'return [pair for pair in zip("ab", range(amount), strict=True) if pair[1] in "b"]',
        },
        "and/or": {"if budget.left is None and (not amount):"},
        "comparison": {
            "if budget.left is not None or not amount:",
            "if amount >= budget.left:",
            "if amount <= budget.left:",
            "return [pair for pair in zip(\"ab\", range(amount), strict=True) if pair[0] not in 'b']",
        },
        "not": {"if budget.left is None or amount:"},
        "return": {"return None"},
        "removed statement": {"pass"},
    }


def test_a_condition_that_is_no_comparison_is_turned_round():
    source = "while waiting():\n    x = 1 if y else 2\n    wait(left)\n    x += 1\n"
    assert changed_lines(source) == {
        "condition": {"while not waiting():", "x = 1 if not y else 2"},
        "constant": {"x = 2 if y else 2", "x = 1 if y else 3", "x += 2"},
        "removed statement": {"pass"},
        "arithmetic": {"x -= 1"},
    }


def test_the_lines_whose_tests_are_asked():
    source = "def f(\n    x,\n):\n    g(\n        -x,\n    )\n    return (\n        1\n    )\n"
    lines = {(mutant.kind, mutant.first, mutant.last) for mutant in mutants("f.py", source)}
    assert lines == {
        ("removed statement", 4, 6),
        ("sign", 4, 6),
        ("return", 7, 9),
        ("constant", 7, 9),
    }
