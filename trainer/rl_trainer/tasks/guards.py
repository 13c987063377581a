"""Makes reasoning-gym's scorers safe for text that a model wrote.

Four of them call Python's `eval` on the completion, two read arithmetic and three formulas with sympy's
`parse_expr`, which is `eval` as well: a completion could run any code, and `9**9**9**9` stops the process for
good (no deadline helps, as the work is done in one call of C). The first six get another evaluator, the last
three are only asked about formulas.
"""

from __future__ import annotations

import ast
import sys
import warnings
from typing import Any

from rl_trainer.tasks.arithmetic import evaluate

LITERALS = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
"""Generators whose scorer evaluates a list that the model wrote."""

ARITHMETIC = frozenset({"countdown", "puzzle24"})
"""Generators whose scorer evaluates arithmetic."""

FORMULAS = frozenset({"simple_integration", "intermediate_integration", "polynomial_multiplication"})
"""Generators whose scorer parses a formula."""

MAX_FORMULA = 1000
"""Longest formula, in characters."""

# Bound on the size in bits of numbers, and on the degree, of a formula once it is worked out.
_MAX_SIZE = 2000
_TRIGONOMETRIC = {
    f"{arc}{name}{h}" for arc in ("", "a") for name in ("sin", "cos", "tan", "cot") for h in ("", "h")
}
_FUNCTIONS = frozenset({"sec", "csc", "exp", "log", "ln", "sqrt", "Abs", *_TRIGONOMETRIC})
_CONSTANTS = frozenset({"pi", "E"})


def guard_scorers(datasets: dict[str, Any]) -> None:
    """Gives the library's scorers evaluators that run nothing; `datasets`: its registry, name -> (class, config)."""
    for name in LITERALS | ARITHMETIC:
        if name in datasets:
            module = vars(sys.modules[datasets[name][0].__module__])
            if name in LITERALS:
                module["eval"] = _literal
            else:
                module["parse_expr"] = evaluate


def may_be_scored(generator: str, completion: str) -> bool:
    """Whether the generator's scorer can be asked; a completion that is refused is wrong."""
    return generator not in FORMULAS or is_formula(completion)


def is_formula(text: str) -> bool:
    """Whether a text is a formula of numbers, variables, + - * / ** and well-known functions, and of bounded size."""
    if len(text) > MAX_FORMULA or not text.isascii():
        return False
    try:
        tree = _quietly_parsed(text.strip())
        return _size(tree.body) <= _MAX_SIZE
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _literal(text: str) -> Any:
    return ast.literal_eval(_quietly_parsed(text.strip()))


def _quietly_parsed(text: str) -> ast.Expression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as: invalid decimal literal
        return ast.parse(text, mode="eval")


def _size(node: ast.expr) -> float:
    """Bits of the largest number, or the degree, that working out a formula can give; ValueError if it is no formula."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return max(1, value.bit_length())
        case ast.Constant(value=float()):
            return 64
        case ast.Name(id=name) if len(name) == 1 or name in _CONSTANTS:
            return 1
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _size(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _checked(max(_size(left), _size(right)) + 1)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _checked(_size(left) + _size(right))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _checked(_size(left) * _largest_exponent(right))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _size(argument) + 64
    raise ValueError("not a formula")


def _largest_exponent(node: ast.expr) -> float:
    size = _size(node)
    if any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node)):
        return size  # symbolic: x**n is not worked out
    return 2.0 ** min(size, 64)  # type: ignore[no-any-return]


def _checked(size: float) -> float:
    if size > _MAX_SIZE:
        raise ValueError("too large")
    return size
