"""What is done when a reconcile fails: say so, and try again later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

LOG = logging.getLogger("rl_operator")

_LONGEST_BACK_OFF: Final = 60.0
_LEVELS: Final = {"Conflict": logging.INFO, "Unexpected": logging.DEBUG}
"""By reason: a conflict is the course of things, and what nobody thought of is in the log already."""


def back_off(failures: int) -> float:
    """Seconds until the next try after so many failures in a row."""
    return min(0.5 * 2.0 ** min(failures, 10), _LONGEST_BACK_OFF)


def say_failed(reason: str, sentence: str, wait: float, about: Mapping[str, Any]) -> None:
    """Log that it failed, and in how many seconds it is tried again; `about`: whose reconcile it was."""
    level = _LEVELS.get(reason, logging.WARNING)
    LOG.log(level, "%s; trying again in %.0f s", sentence, wait, extra={**about, "reason": reason})
