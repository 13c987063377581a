"""Every single small change to a Python file that its tests should notice. Pure: text in, texts out."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# Statements that may go without leaving a name undefined, which any test would notice.
_REMOVABLE = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)
# Arguments that guard against mistakes of ours and change nothing that is right.
_GUARDS = ("strict", "stacklevel")


@dataclass(frozen=True)
class Mutant:
    """One changed file."""

    path: str
    kind: str
    first: int
    """Line where the changed statement (of an `if` or `def`: its head) begins, from 1."""
    last: int
    """Its last line."""
    source: str

    def diff(self, original: str) -> str:
        """What changed, as a unified diff without context."""
        lines = difflib.unified_diff(
            original.splitlines(), self.source.splitlines(), self.path, self.path, n=0, lineterm=""
        )
        return "\n".join(lines)


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of one file, in the order of its lines.

    Left alone: texts (docstrings, messages), annotations, decorators, formatted strings, and arguments that only guard.
    """
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def replaced(node: ast.AST, by: str) -> str:
        begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return (text[:begin] + by.encode() + text[end:]).decode()

    for node, (first, last) in _nodes(ast.parse(source)):
        for kind, by in _changes(node):
            yield Mutant(path, kind, first, last, replaced(node, by))


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, tuple[int, int]]]:
    """Every node that may change, with first and last line of its statement or of the statement's head."""
    waiting: list[tuple[ast.AST, tuple[int, int]]] = [(tree, (1, 1))]
    while waiting:
        node, lines = waiting.pop()
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            lines = (node.lineno, end)
        yield node, lines
        waiting.extend((child, lines) for child in reversed(list(_children(node))))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr) or _for_type_checkers(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or (isinstance(child, ast.keyword) and child.arg in _GUARDS):
                continue
            yield child


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(kind, what stands in place of the node)."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for other in _COMPARISONS[type(operator)]:
                changed = copy.deepcopy(node)
                changed.ops[index] = other()
                yield "comparison", ast.unparse(changed)
    elif isinstance(node, ast.BoolOp):
        other_word = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", ast.unparse(ast.BoolOp(other_word, node.values))
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node):
        yield "arithmetic", ast.unparse(ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign" if isinstance(node.op, ast.USub) else "not", ast.unparse(node.operand)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", str(not node.value)
        elif isinstance(node.value, int | float) and node.value + 1 != node.value:
            yield "constant", repr(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield "condition", ast.unparse(ast.IfExp(_negated(node.test), node.body, node.orelse))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return", "return None"
    elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        yield (
            "arithmetic",
            ast.unparse(ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)),
        )
    if isinstance(node, ast.Name | ast.Call | ast.Attribute) and getattr(node, "is_test", False):
        yield "condition", ast.unparse(_negated(node))
    if isinstance(node, _REMOVABLE) and not (isinstance(node, ast.Expr) and _is_text(node.value)):
        yield "removed statement", "pass"
    if isinstance(node, ast.If | ast.While):
        node.test.is_test = True  # type: ignore[attr-defined]  # a comparison has changes of its own
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            test.is_test = True  # type: ignore[attr-defined]


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.AST) -> bool:
    """A text or one built with + or %: a message; also `...` and a docstring."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | type(...))
    )
