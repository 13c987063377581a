"""Small files of the run folder: written whole or not at all, read with a sentence when they are broken."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from rl_api.errors import RLTrainError


class Closes:
    """What is closed at the end of a `with` block."""

    def close(self) -> None:
        """Let go of what is held; nothing to do here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of `path` what the operating system refuses in the block. Raises RLTrainError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RLTrainError(
            f"{path}: cannot be written ({reason}); free space or choose another folder with --out"
        ) from error


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` so that a reader, or a crash, sees the old file or the new one, never half.

    Raises:
        RLTrainError: the folder cannot be written (disk full, no permission); the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None when there is no such file.

    Raises:
        RLTrainError: the file is there but is not JSON or cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RLTrainError(
            f"{path}: is not readable JSON ({error}); remove it and make the report again"
        ) from error


def finite(value: Any) -> Any:
    """Return `value` with None for every NaN and infinity inside: strict JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Return strict JSON text (no NaN) of `value`; compact unless `indent` is given."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        finite(value), indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
    )
