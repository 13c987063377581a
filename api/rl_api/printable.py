"""Text of others', as it may reach a terminal, a status, a log line or a page. Pure."""

from __future__ import annotations

import re
from typing import Final

_UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"

# Colours, cursor, title, links: CSI sequences, and OSC, DCS and their like up to their end on the line.
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
)


def printable(text: object, limit: int | None = None) -> str:
    """One line of text without anything that acts on what shows it: control characters, escape sequences, marks that
    turn the direction of writing, characters without width, halves of surrogate pairs. Each is shown as U+FFFD, every kind
    of space and line end as a space.

    Args:
        text: what was said, by whomever.
        limit: at most so many characters are kept; the last one of a cut text is an ellipsis.
    """
    said = str(text)
    if limit is not None and len(said) > limit:
        said = f"{said[: limit - 1]}…"
    return "".join(one if one.isprintable() else " " if one.isspace() else _UNPRINTABLE for one in said)


def printable_lines(text: object) -> str:
    """Text whose lines and tabs stay, such as a log: else as `printable`, but that whole escape sequences are left out."""
    said = _SEQUENCE.sub("", str(text))
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in said.split("\n"))
