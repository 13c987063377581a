"""Recipes: one YAML file for each named algorithm, with its choices in the contract's own field names.

A recipe's values are defaults: below what the run says (and the profile, if it ever has a say in the algorithm), above
the contract's own. A file in this folder is a name that `algorithm.name` takes; nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from rl_api.documents import load_documents

_FOLDER: Final = Path(__file__).parent

RECIPES: Final[tuple[str, ...]] = tuple(sorted(file.stem for file in _FOLDER.glob("*.yaml")))
"""Names of the algorithms that have a recipe."""

RECIPE_GROUPS: Final = ("advantage", "loss", "clip", "importance", "kl", "overlong", "dynamicSampling")
"""Fields of `algorithm` that a recipe may set. The CRD gives what is in them no default: it would hide the recipe's."""


@cache
def recipe(name: str) -> Mapping[str, Any]:
    """The choices of the recipe `name`, as plain data; none for a name without a file (a user's own algorithm)."""
    if name not in RECIPES:
        return {}
    ((_, choices),) = load_documents((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), f"recipe {name}")
    return dict(choices)
