"""Groups as a checkpoint holds them, of this version and of those before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.trajectory import Group

# 1 kept of a group what is now in fields of their own under `extra`, 2 had counters that nobody reads. Both are still read.
SNAPSHOT_FORMAT = 3


def saved_groups(state: Mapping[str, Any], payloads: Sequence[Any]) -> list[Group]:
    """The ready groups of a buffer's snapshot. Raises RLTrainError for one that this version cannot read."""
    if state.get("format") not in range(1, SNAPSHOT_FORMAT + 1):
        raise RLTrainError(
            f"the checkpoint's buffer has format {state.get('format')!r}, allowed are 1 to {SNAPSHOT_FORMAT}"
        )
    if len(payloads) != len(state["ready"]):
        raise RLTrainError(
            f"the checkpoint lists {len(state['ready'])} ready groups but holds {len(payloads)} payloads"
        )
    return [
        Group.load(_group_of_format_1(saved) if state["format"] == 1 else saved, payload)
        for saved, payload in zip(state["ready"], payloads, strict=True)
    ]


def _group_of_format_1(saved: Mapping[str, Any]) -> dict[str, Any]:
    meta, extra = saved["meta"], saved["meta"]["extra"]
    kept = {name: meta[name] for name in ("group_id", "rewards", "lengths", "min_version", "priority")}
    more = {name: extra[name] for name in ("total_lengths", "truncated", "spans")}
    return {**kept, **more, "version": saved["version"]}
