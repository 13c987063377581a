"""Finds the user's functions and classes (`module:name`) and says where their errors come from."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rl_api.errors import TaskError


def load_function(
    path: str, search: Path | None = None, field: str = "task.rewards.function"
) -> Callable[..., Any]:
    """The function `module:function`.

    Args:
        path: what the user wrote.
        search: folder looked in first, before everything that is installed; the run file's.
        field: the field it was written in, for errors.

    Raises:
        TaskError: there is no such module or function, or the module cannot be imported.
    """
    found = load_object(path, search, field)
    if inspect.isclass(found) or not callable(found):
        raise TaskError(f"{field}: {path} is not a function but {_kind(found)}")
    if inspect.iscoroutinefunction(found):
        raise TaskError(
            f"{field}: {path} is an async function, which is never awaited; write a plain one (def)"
        )
    return found  # type: ignore[no-any-return]


def load_class(path: str, search: Path | None = None, field: str = "task.name") -> type[Any]:
    """The class `module:Class`; arguments and errors as `load_function`."""
    found = load_object(path, search, field)
    if not inspect.isclass(found):
        raise TaskError(f"{field}: {path} is not a class but {_kind(found)}")
    return found


def load_object(path: str, search: Path | None, field: str) -> Any:
    """Whatever `module:name` names; arguments and errors as `load_function`."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise TaskError(f"{field}: found {path!r}, allowed: module:name, such as my_rewards:length_penalty")
    module = _import(module_name, search, field)
    try:
        return getattr(module, name)
    except AttributeError:
        offered = [
            key
            for key, value in vars(module).items()
            if callable(value)
            and not key.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
        ]
        close = difflib.get_close_matches(name, offered, 1)
        hint = f"; did you mean {module_name}:{close[0]}?" if close else ""
        raise TaskError(
            f"{field}: module {module_name} has no {name!r}, it offers "
            f"{', '.join(sorted(offered)) or 'nothing'}{hint}"
        ) from None


def line_of(error: BaseException, file: str | None) -> str:
    """file:line at which `error` was raised: the innermost line of `file`, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename == file] or list(frames)
    return short_location(f"{inside[-1].filename}:{inside[-1].lineno}") if inside else "an unknown line"


def short_location(location: str) -> str:
    """file:line with the working directory left out."""
    prefix = f"{Path.cwd()}/"
    return location.removeprefix(prefix)


def file_of(function: Any) -> str | None:
    """The source file of a function or class as its frames call it, None where it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is not None:
        return str(code.co_filename)
    try:
        return inspect.getfile(function)
    except (TypeError, OSError):
        return None


def _import(name: str, search: Path | None, field: str) -> ModuleType:
    if search is not None:
        look_first_in(search.resolve(), name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise TaskError(
                f"{field}: module {name} cannot be imported: {error} ({line_of(error, None)})"
            ) from error
        beside = sorted(file.stem for file in search.glob("*.py")) if search is not None else []
        place = f"beside the run file ({search}) or installed" if search is not None else "installed"
        there = f"; beside the run file: {', '.join(beside)}" if beside else ""
        raise TaskError(f"{field}: there is no module {name!r} {place}{there}") from None
    except (Exception, SystemExit) as error:
        where = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else line_of(error, None)
        raise TaskError(
            f"{field}: module {name} cannot be imported: {type(error).__name__}: {error} "
            f"({short_location(where)})"
        ) from error


def look_first_in(folder: Path, name: str) -> None:
    """Puts `folder` first on the module path and forgets a module of that name that came from elsewhere."""
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
        importlib.invalidate_caches()
    parts = name.split(".")
    top = folder / parts[0]
    here = [top.with_suffix(".py"), top / "__init__.py"]
    loaded = sys.modules.get(parts[0])
    if loaded is None or not any(file.is_file() for file in here):
        return
    if Path(getattr(loaded, "__file__", None) or "").resolve() not in [file.resolve() for file in here]:
        for module in [key for key in sys.modules if key.partition(".")[0] == parts[0]]:
            del sys.modules[module]


def _kind(value: Any) -> str:
    return "a class" if inspect.isclass(value) else f"a {type(value).__name__}"
