"""What processes for other people's code do not get of our environment: tokens and credentials. Pure.

They run as the same user: one that looks for it finds the environment of the process that has started it (/proc). This is
against what is read or printed by chance, and against code that takes its credentials where it finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rl_api.progress import STATUS_TOKEN_FILE_VARIABLE, STATUS_TOKEN_VARIABLE

_NAMES: Final = frozenset(
    {
        STATUS_TOKEN_VARIABLE,
        STATUS_TOKEN_FILE_VARIABLE,
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HUGGING_FACE_HUB_TOKEN",
    }
)
_PREFIX: Final = "AWS_"
"""Of the object store's variables."""


def for_user_code(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without these."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NAMES and not name.startswith(_PREFIX)
    }
