"""What errors of libraries and of the system say, in one line for a sentence of ours."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of an error that has something in it; else its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def reason(error: Exception) -> str:
    """The text of an error in one line: what the system says, without the number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
