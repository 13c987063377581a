"""Prompts from a JSONL file, on a disk or behind any URI that fsspec opens (s3://, gs://, https:// ...)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_api.errors import TaskError
from rl_trainer.storage.remote_folder import advice
from rl_trainer.tasks.types import Message

READ_SECONDS = 300.0
"""Deadline for reading a file from a remote store."""


@dataclass(frozen=True)
class FileItem:
    """One line: the question (text or a chat), the answer (None without one) and all of its fields."""

    question: str | tuple[Message, ...]
    answer: str | None
    fields: dict[str, Any]


def read_prompts(
    file: str, prompt_field: str, answer_field: str, *, search: Path | None = None, needs_answer: bool = True
) -> list[FileItem]:
    """All lines of the file; blank lines are left out.

    Args:
        file: path or URI. A relative path is looked for in `search`, then in the working directory.
        prompt_field: field with the question.
        answer_field: field with the answer.
        search: folder of the run file.
        needs_answer: whether a line without an answer is an error.

    Raises:
        TaskError: the file or one of its lines cannot be used; the sentence names file and line.
    """
    items = []
    for number, fields in _lines(_read(file, search), file):
        where = f"{file}:{number}"
        items.append(
            FileItem(
                _question(_field(fields, prompt_field, where, "task.promptField"), where, prompt_field),
                _answer(fields, answer_field, where, needs_answer),
                fields,
            )
        )
    if not items:
        raise TaskError(f"task.file: {file} is empty; it needs one JSON object per line")
    return items


def read_items(file: str, *, search: Path | None = None) -> list[dict[str, Any]]:
    """All lines of the file as they are, for an environment; errors as `read_prompts`."""
    items = [fields for _, fields in _lines(_read(file, search), file)]
    if not items:
        raise TaskError(f"task.file: {file} is empty; it needs one JSON object per line")
    return items


def _read(file: str, search: Path | None) -> bytes:
    if "://" in file:
        return _read_remote(file)
    candidates = [Path(file)] if search is None or Path(file).is_absolute() else [search / file, Path(file)]
    for path in candidates:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TaskError(f"task.file: {file} cannot be read: {error.strerror or error}") from None
    beside = (
        ""
        if len(candidates) == 1
        else f", neither beside the run file ({search}) nor in the working directory"
    )
    raise TaskError(f"task.file: there is no file {file}{beside}")


def _read_remote(uri: str) -> bytes:
    def read() -> bytes:
        import fsspec  # slow, and only needed here

        with fsspec.open(uri, "rb") as opened:
            return bytes(opened.read())

    found: Future[bytes] = Future()

    def answer() -> None:
        try:
            found.set_result(read())
        except BaseException as error:  # raised below
            found.set_exception(error)

    # A thread that waits for a store that never answers is left behind: it holds a connection, not a core.
    threading.Thread(target=answer, name="prompts", daemon=True).start()
    try:
        return found.result(READ_SECONDS)
    except FutureTimeout:
        raise TaskError(
            f"task.file: {uri} was not read after {READ_SECONDS:.0f} s; check the network"
        ) from None
    except ImportError as error:
        raise TaskError(f"task.file: {uri} needs a package that is not installed: {error}") from None
    except Exception as error:  # every store has its own errors
        reason = (str(error) or type(error).__name__).rstrip(".")
        raise TaskError(f"task.file: {uri} cannot be read: {reason}. {advice(uri)}") from error


def _lines(data: bytes, file: str) -> Iterable[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            fields = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise TaskError(
                f"{where}: not UTF-8 text ({error.reason} at byte {error.start} of the line)"
            ) from None
        except (json.JSONDecodeError, RecursionError) as error:
            reason = (
                f"{error.msg} at character {error.pos + 1}"
                if isinstance(error, json.JSONDecodeError)
                else error
            )
            raise TaskError(f"{where}: not a JSON object ({reason}): {_shortened(line)}") from None
        if not isinstance(fields, dict):
            raise TaskError(
                f"{where}: found a JSON {_kind(fields)}, allowed: an object such as "
                '{"prompt": "1+1", "answer": "2"}'
            )
        yield number, fields


def _field(fields: Mapping[str, Any], name: str, where: str, setting: str) -> Any:
    if name not in fields:
        offered = ", ".join(fields) or "no fields"
        raise TaskError(f"{where}: there is no field {name!r} ({setting}), the line has: {offered}")
    return fields[name]


def _question(value: Any, where: str, field: str) -> str | tuple[Message, ...]:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value:
        return check_messages(value, f"{where}: field {field!r}")
    raise TaskError(
        f"{where}: field {field!r} is {_shown(value)}, allowed: text that is not empty, or chat messages"
    )


def check_messages(value: Any, where: str) -> tuple[Message, ...]:
    """The messages of a chat, checked: the last one is not the assistant's.

    Raises:
        TaskError: they are not messages.
    """
    messages = []
    for number, message in enumerate(value):
        if not (
            isinstance(message, Mapping)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ):
            raise TaskError(
                f"{where}, message {number}: found {_shown(message)}, "
                'allowed: {"role": "user", "content": "..."}'
            )
        messages.append({"role": message["role"], "content": message["content"]})
    if messages[-1]["role"] == "assistant":
        raise TaskError(
            f"{where}: the last message is the assistant's, allowed: one that asks for an answer (user)"
        )
    return tuple(messages)


def _answer(fields: Mapping[str, Any], name: str, where: str, needed: bool) -> str | None:
    if name not in fields and not needed:
        return None
    value = _field(fields, name, where, "task.answerField")
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    if value is None and not needed:
        return None
    raise TaskError(f"{where}: field {name!r} is {_shown(value)}, allowed: text or a number")


def _shown(value: Any) -> str:
    return (
        "empty"
        if value in ("", [], None) or (isinstance(value, str) and not value.strip())
        else f"{value!r:.60}"
    )


def _shortened(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _kind(value: Any) -> str:
    return {list: "list", str: "string", int: "number", float: "number", bool: "truth value"}.get(
        type(value), "null"
    )
