"""The token of the status server: taken from where the operator has put it, and then only in this process's memory."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

from rl_api.errors import InvalidConfig
from rl_api.progress import STATUS_TOKEN_FILE_VARIABLE, STATUS_TOKEN_VARIABLE

_LONGEST: Final = 4096


def take_token() -> str | None:
    """The token, None where there is none; its variables are gone then, for this process and all that it starts.

    Call it before anything else is started.

    Raises:
        InvalidConfig: the file that should hold it cannot be read, or holds none.
    """
    path, given = os.environ.pop(STATUS_TOKEN_FILE_VARIABLE, None), _wiped(STATUS_TOKEN_VARIABLE)
    if path is None:
        return given or None
    try:
        with Path(path).open("rb") as file:
            token = file.read(_LONGEST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidConfig(f"{STATUS_TOKEN_FILE_VARIABLE}: {path} cannot be read ({why})") from None
    if not token:
        raise InvalidConfig(f"{STATUS_TOKEN_FILE_VARIABLE}: {path} is empty, allowed: a file with the token")
    return token


def _wiped(name: str) -> str | None:
    """A variable's value, which nobody finds in /proc any more: that shows the memory in which this process got it."""
    value = os.environ.get(name)
    if value is None:
        return None
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        place = libc.getenv(name.encode())
        if place:
            ctypes.memset(place, 0, len(os.fsencode(value)))
    del os.environ[name]
    return value
