"""What a job is: its options, and the manifest that says with which of them an output was begun. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rl_api.printable import printable
from rl_generate.encoding import Format
from rl_generate.rows import Columns

VERSION: Final = 1
# Parts of a job: about a thousand, of no fewer rows than an engine needs, and no more than one likes to lose.
_PARTS, _FEWEST, _MOST = 1000, 64, 4096


@dataclass(frozen=True)
class Options:
    """What is asked of every row.

    Attributes:
        temperature, top_p, top_k: as in `SamplingParams`.
        max_new_tokens: most tokens of an answer.
        max_context: most tokens of a prompt with its answer; the model may hold fewer.
        stop: texts that end an answer; they are no part of it.
        seed: of the job.
        n: answers of each row.
        columns: names.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 1024
    max_context: int = 4096
    stop: tuple[str, ...] = ()
    seed: int = 0
    n: int = 1
    columns: Columns = field(default_factory=Columns)


# Field of a manifest -> what the user calls it.
_NAMES: Final = {
    "input": "--input",
    "model": "--model",
    "format": "--format",
    "part_rows": "--part-rows",
    "prompt": "--prompt-column",
    "messages": "--messages-column",
    "prefix": "--added-prefix",
}


def manifest(
    options: Options, *, input: str, rows: int, model: str, format: Format, part_rows: int
) -> dict[str, Any]:
    """What is written beside the parts before the first of them.

    Args:
        options: of the job.
        input: fingerprint of all that is read.
        rows: how many there are.
        model: version of the policy.
        format: of the parts.
        part_rows: rows of each of them.
    """
    found = asdict(options)
    columns = found.pop("columns")
    found["stop"] = list(options.stop)
    return {
        "rltrain_generate": VERSION,
        "input": input,
        "model": model,
        "format": format,
        "part_rows": part_rows,
        **columns,
        **found,
        "rows": rows,
    }


def difference(found: Any, wanted: Mapping[str, Any]) -> str:
    """The first thing in which the job of an output's manifest is another one than ours, as a sentence; empty: none."""
    if not isinstance(found, Mapping) or found.get("rltrain_generate") != VERSION:
        return "its manifest is of another version of rltrain"
    for name, value in wanted.items():
        if found.get(name) != value:
            option = _NAMES.get(name, f"--{name.replace('_', '-')}")
            return f"{option}: it was begun with {_shown(found.get(name))}, found {_shown(value)}"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(repr(one) for one in value) or "none"
    return printable(value, 80) if value != "" else "none"


def rows_of_a_part(rows: int) -> int:
    """Rows of a part, where the user does not say it."""
    return min(_MOST, max(_FEWEST, math.ceil(rows / _PARTS)))


def parts_at_once(slots: int, part_rows: int) -> int:
    """Parts that an engine of `slots` has rows of at a time.

    An answer that is many times longer than the others holds its part open; so many are open that the rows of the others
    keep the engine full meanwhile.
    """
    return min(64, max(8, math.ceil(32 * slots / part_rows)))
