"""API keys: a file with one on each line, and whether a request has one of them. Pure but for reading the file."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from rl_api.errors import InvalidConfig
from rl_serve.errors import ApiError
from rl_trainer.error_text import reason

_SHORTEST = 16


def read_keys(path: Path) -> frozenset[str]:
    """SHA-256 (hex) of every key of a file: one on each line; empty lines and those that begin with # are left out.

    Raises:
        InvalidConfig: it cannot be read, has no key, or one that can be guessed.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"--api-key-file: {path} cannot be read ({reason(error)})") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise InvalidConfig(f"--api-key-file: {path} has no key; allowed: one on each line")
    if any(len(key) < _SHORTEST or not key.isascii() or " " in key for key in keys):
        raise InvalidConfig(
            f"--api-key-file: {path} has a key that is too short or no key; allowed: at least {_SHORTEST} ASCII "
            "characters without spaces"
        )
    return frozenset(map(_digest, keys))


def check_key(authorization: str | None, keys: frozenset[str]) -> None:
    """Whether the header `Authorization` has one of `keys` (as of `read_keys`); without keys everyone may ask.

    Raises:
        ApiError: it has not, 401.
    """
    if not keys:
        return
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


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
