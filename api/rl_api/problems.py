"""One thing that is wrong with an object."""

from __future__ import annotations

from typing import NamedTuple

from rl_api.paths import Path, parse_path


class Problem(NamedTuple):
    """One thing that is wrong: the field, the sentence, and the other fields the rule looked at."""

    path: Path
    sentence: str
    others: tuple[Path, ...] = ()


def spec_problem(path: str, sentence: str, *others: str) -> Problem:
    """A problem of the field at `path` of a run's spec, found by a rule that also looked at `others`."""
    return Problem(
        parse_path(f"spec.{path}"), sentence, tuple(parse_path(f"spec.{other}") for other in others)
    )
