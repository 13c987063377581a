"""Tokens by which the operator and an attempt know each other: derived from a key of the operator's, never read. Pure."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

STATUS_SERVER: Final = "status"
"""Purpose: the token that the operator shows to the driver's status server."""

RAY: Final = "ray"
"""Purpose: the token without which no process of the attempt's Ray cluster answers."""

CONTROL: Final = "control"
"""Purpose: the token that the operator shows to a policy service's control."""

AUTHORITY: Final = "authority"
"""Purpose: the seed of the authority that signs the certificates of the attempt's pods."""


def derive_token(key: bytes, uid: str, attempt: int, purpose: str) -> str:
    """The token of one attempt of a run for one purpose: 64 hexadecimal digits.

    Whoever knows it learns nothing about the key, nor about any other token.
    """
    said = f"{uid}\n{attempt}\n{purpose}"
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()
