"""Parts of sentences: what errors of libraries and of the system say in one line, and how a run goes on after one."""

from __future__ import annotations

import os

# On a cluster nobody types the command: there the operator begins the next attempt.
RESUME_HINT = (
    "the next attempt goes on from the last checkpoint"
    if "RLTRAIN_ATTEMPT" in os.environ
    else "add --resume to the same command to go on from the last checkpoint"
)
STOPPED_AT_ONCE = f"stopped at once; {RESUME_HINT}"


def first_line(error: BaseException) -> str:
    """The first line of an error that has something in it; else its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def reason(error: Exception) -> str:
    """The text of an error in one line: what the system says, without the number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
