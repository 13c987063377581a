"""Arithmetic on text that a model wrote: exact, bounded, and never executed. Pure."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_EXPRESSION = 200
"""Longest expression, in characters."""

MAX_BITS = 512
"""Size of the largest number, numerator and denominator each."""

_CHARACTERS = re.compile(r"[0-9.+\-*/%() ]+")
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}


def evaluate(expression: str) -> Fraction:
    """The value of an expression of numbers, + - * / // % ** and parentheses.

    The expression is parsed, and only numbers and these operators are followed. Its length, the size of the
    numbers and the exponents are bounded, so every call is quick.

    Raises:
        ValueError: not such an expression, too long or too large, or division by zero; says which.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"longer than {MAX_EXPRESSION} characters")
    if not _CHARACTERS.fullmatch(expression):
        raise ValueError("not arithmetic")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return _value(tree.body, expression.strip())
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("not arithmetic") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None


def shown(value: Fraction) -> str:
    """A number as text, rounded to 6 decimals, without zeros at the end."""
    if value.denominator == 1:
        return str(value.numerator)
    millionths = round(value * 10**6)
    digits = f"{abs(millionths) // 10**6}.{abs(millionths) % 10**6:06d}".rstrip("0").rstrip(".")
    return f"-{digits}" if millionths < 0 else digits


def _value(node: ast.expr, source: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            # From the source text: 0.1 is a tenth, not the nearest binary fraction.
            return _bounded(Fraction(ast.get_source_segment(source, node) or ""))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, source)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, source)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, source), _value(right, source))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left, source), _value(right, source)))
    raise ValueError("not arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("exponent is not whole")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent.numerator) * size > MAX_BITS:  # before it is worked out
        raise ValueError("too large")
    return Fraction(base**exponent.numerator)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("too large")
    return value
