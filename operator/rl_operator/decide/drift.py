"""Which objects are missing, and which are not as they were rendered. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_operator.model.names import Manifest
from rl_operator.model.parse import hash_of
from rl_operator.model.seen import Live


def drift(
    wanted: Sequence[Manifest], live: Mapping[tuple[str, str], Live]
) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Of the objects that are wanted those that are missing, and those that differ from what they should be."""
    there = [(live.get((one["kind"], one["metadata"]["name"])), one) for one in wanted]
    return (
        tuple(manifest for found, manifest in there if found is None),
        tuple(
            manifest for found, manifest in there if found is not None and not _as_rendered(found, manifest)
        ),
    )


def contains(there: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; what the API server added does not matter."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(
            key in there and contains(there[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(there, list)
            and len(there) == len(wanted)
            and all(contains(one, other) for one, other in zip(there, wanted, strict=True))
        )
    return bool(there == wanted)


def _as_rendered(live: Live, manifest: Manifest) -> bool:
    return live.hash == hash_of(manifest) and contains(live.spec, manifest["spec"])
