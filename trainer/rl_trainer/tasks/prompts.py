"""Prompts from a JSONL file, on a disk or in an object store (s3://bucket/file)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_api.errors import TaskError
from rl_trainer.storage.remote_folder import advice, filesystem_of
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
    file: str, content: bytes, prompt_field: str, answer_field: str, *, needs_answer: bool = True
) -> list[FileItem]:
    """All lines of the file; blank lines are left out.

    Args:
        file: its name, for errors.
        content: what it holds (`read_file`).
        prompt_field: field with the question.
        answer_field: field with the answer.
        needs_answer: whether a line without an answer is an error.

    Raises:
        TaskError: one of its lines cannot be used; the sentence names file and line.
    """
    items = []
    for number, fields in _lines(file, content):
        where = f"{file}:{number}"
        items.append(
            FileItem(
                _question(_field(fields, prompt_field, where, "task.promptField"), where, prompt_field),
                _answer(fields, answer_field, where, needs_answer),
                fields,
            )
        )
    return items


def read_items(file: str, content: bytes) -> list[dict[str, Any]]:
    """All lines of the file as they are, for an environment; arguments and errors as `read_prompts`."""
    return [fields for _, fields in _lines(file, content)]


def read_file(file: str, search: Path | None) -> bytes:
    """Content of a file at a path or URI; a relative path is looked for in `search`, then in the working directory.

    Raises TaskError when it cannot be read.
    """
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
    beside = f", neither beside the run file ({search}) nor in the working directory"
    raise TaskError(f"task.file: there is no file {file}{beside if len(candidates) > 1 else ''}")


def _read_remote(uri: str) -> bytes:
    def read() -> bytes:
        files, path = filesystem_of(uri)
        return bytes(files.cat_file(path))

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
    except ValueError as error:
        raise TaskError(f"task.file: {error}") from None
    except ImportError as error:
        raise TaskError(f"task.file: {uri} needs a package that is not installed: {error}") from None
    except Exception as error:  # every store has its own errors
        reason = (str(error) or type(error).__name__).rstrip(".")
        raise TaskError(f"task.file: {uri} cannot be read: {reason}. {advice(uri)}") from error


def _lines(file: str, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines that are not blank, by number."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not any(map(bytes.strip, lines)):
        raise TaskError(f"task.file: {file} is empty; it needs one JSON object per line")
    for number, line in enumerate(lines, start=1):
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
            at = f"{error.msg} at character {error.pos + 1}" if isinstance(error, ValueError) else error
            raise TaskError(f"{where}: not a JSON object ({at}): {_shortened(line)}") from None
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
    """The messages of a chat, the last one not the assistant's; TaskError when they are no messages."""
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
    empty = value in ([], None) or (isinstance(value, str) and not value.strip())
    return "empty" if empty else f"{value!r:.60}"


def _shortened(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _kind(value: Any) -> str:
    return {list: "list", str: "string", int: "number", float: "number", bool: "truth value"}.get(
        type(value), "null"
    )
