"""Classes of actors whose code is imported where the actor runs only.

Ray wants a class where an actor is started, to know its methods. That of a learner stands in a module that imports torch,
some 470 MB, and the driver computes nothing.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def named_class(module: str, name: str) -> type:
    """A class of the same name and the same public methods, whose objects make one of `module`'s and hand every call on.

    The methods are read from the module's source; nothing of it is imported here but the packages that it is in. With
    those of its bases, where these have names that the module imports or defines. None of them may be a coroutine: Ray would
    run it on an event loop. A generator stays one: Ray looks at that.
    """
    members: dict[str, Any] = {
        method: _handed_out(method) if yields else _handed_on(method)
        for method, yields in _methods(module, name).items()
    }

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        self.inner = getattr(importlib.import_module(module), name)(*arguments, **named)

    return type(name, (), {**members, "__init__": init, "__module__": module})


def _handed_on(method: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, method)(*arguments, **named)

    call.__name__ = call.__qualname__ = method
    return call


def _handed_out(method: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        yield from getattr(self.inner, method)(*arguments, **named)

    call.__name__ = call.__qualname__ = method
    return call


def _methods(module: str, name: str) -> dict[str, bool]:
    """Whether each is a generator, by name."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} has no source")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        raise AttributeError(f"{module} defines no class {name}")
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    found: dict[str, bool] = {}
    for base in classes[name].bases:
        plain = base.value if isinstance(base, ast.Subscript) else base  # of Base[int]
        if isinstance(plain, ast.Name) and plain.id in classes:
            found |= _methods(module, plain.id)
        elif isinstance(plain, ast.Name) and plain.id in imported:
            found |= _methods(*imported[plain.id])
        else:
            raise TypeError(f"{module}.{name}: a base is not found by its name: {ast.unparse(base)}")
    for node in classes[name].body:
        if isinstance(node, ast.AsyncFunctionDef):
            raise TypeError(f"{module}.{name}.{node.name} is a coroutine")
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = _yields(node)
    return found


def _yields(function: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Yield | ast.YieldFrom) or _yields(node)
        for node in ast.iter_child_nodes(function)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
    )
