"""API keys: a file with one on each line, and whether a request has one of them. Pure but for reading the file."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import time
from collections.abc import Iterable
from pathlib import Path

from rl_api.errors import InvalidConfig
from rl_serve.errors import ApiError
from rl_trainer.error_text import reason

logger = logging.getLogger(__name__)

_SHORTEST = 16
_WRONG = f"a key that is too short or no key; allowed: at least {_SHORTEST} ASCII characters without spaces"
_FRESH_SECONDS = 5.0


def read_keys(path: Path) -> frozenset[str]:
    """SHA-256 (hex) of every key of a file: one on each line; empty lines and those that begin with # are left out.

    Raises:
        InvalidConfig: it cannot be read, has no key, or one that can be guessed.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"--api-key-file: {path} cannot be read ({reason(error)})") from None
    return parse_keys(lines, f"--api-key-file: {path}")


def parse_keys(lines: Iterable[str], where: str) -> frozenset[str]:
    """SHA-256 (hex) of every key of a file's lines; errors as of `read_keys`, which begin with `where`."""
    keys, wrong = _sorted_out(lines)
    if wrong:
        raise InvalidConfig(f"{where} has in line {wrong[0]} {_WRONG}")
    if not keys:
        raise InvalidConfig(f"{where} has no key; allowed: one on each line")
    return keys


def _sorted_out(lines: Iterable[str]) -> tuple[frozenset[str], list[int]]:
    """SHA-256 (hex) of the keys in a file's lines, and numbers of lines that have none though they should."""
    keys: list[str] = []
    wrong: list[int] = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if key and not key.startswith("#"):
            good = len(key) >= _SHORTEST and key.isascii() and key.isprintable() and " " not in key
            if good:
                keys.append(_digest(key))
            else:
                wrong.append(number)
    return frozenset(keys), wrong


class KeyFolder:
    """Keys in the files of a folder, as a Secret is mounted: it may change at any time.

    Args:
        path: each file in it holds keys as those of `read_keys`; names that begin with a dot are passed over, and so are
            lines that are no keys: the others of their file count.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read, self._keys = -math.inf, frozenset[str]()
        self.problem = ""
        """What is left out, and why; empty: nothing is."""

    def __call__(self) -> frozenset[str]:
        """The keys, not older than some seconds; none: nobody may ask."""
        if time.monotonic() - self._read > _FRESH_SECONDS:
            self._read = time.monotonic()
            wrong: list[str] = []
            try:
                self._keys = frozenset[str]().union(
                    *(self._of(file, wrong) for file in sorted(self._path.iterdir()))
                )
            except OSError as error:  # a Secret that changes right now
                wrong.append(f"keys cannot be read: {reason(error)}")
            problem = "; ".join(wrong)
            if problem and problem != self.problem:
                logger.warning("%s: %s", self._path, problem)
            self.problem = problem
        return self._keys

    @staticmethod
    def _of(file: Path, wrong: list[str]) -> frozenset[str]:
        if file.name.startswith(".") or not file.is_file():
            return frozenset()
        try:
            keys, lines = _sorted_out(file.read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError:
            wrong.append(f"{file.name} is no text in UTF-8, so it has no keys; allowed: one on each line")
            return frozenset()
        if lines:
            wrong.append(f"{file.name} has {_WRONG} (line {', '.join(map(str, lines[:5]))})")
        elif not keys:  # emptying a file is how its keys are taken back
            wrong.append(f"{file.name} has no key; allowed: one on each line")
        return keys


def check_key(authorization: str | None, keys: frozenset[str] | None) -> str | None:
    """Whether the header `Authorization` has one of `keys` (as of `read_keys`); None: everyone may ask.

    Returns:
        The digest of the key that was given, None where none is needed.

    Raises:
        ApiError: it has not, 401.
    """
    if keys is None:
        return None
    scheme, _, key = (authorization or "").partition(" ")
    given = _digest(key.strip()) if scheme.lower() == "bearer" else ""
    # All are compared, in constant time: how long it takes says nothing about the keys.
    if not sum(hmac.compare_digest(given, known) for known in keys):
        what = "a key that is not known" if given else "no API key"
        raise ApiError(
            f"found {what}; send one as the header Authorization: Bearer KEY",
            status=401,
            code="invalid_api_key",
        )
    return given


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
