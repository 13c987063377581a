"""What a checkpoint holds of a buffer, of this version and of those before. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.state import BufferState
from rl_trainer.trajectory import Group

# 1 kept of a group what is now in fields of their own under `extra`, 2 had counters that nobody reads. Both are still read.
SNAPSHOT_FORMAT = 3


def snapshot(buffer: BufferState) -> tuple[dict[str, Any], list[Any]]:
    """`(state, payloads)`: the state as plain JSON-able values, and the payloads of its ready groups in order.

    A batch under lease, or a part of it, counts as ready: its step is not done. In strict mode unfinished and ready groups
    alike are sampled again after a restore (with the same result), so no payload is kept: a group sampled again in another
    batch of the engine could differ in the last bit. What was handed over is not kept either: such groups are sampled again
    from their prompts.
    """
    kept = [] if buffer.strict else [*buffer.leased, *(entry.value for entry in buffer.ready)]
    again = set(buffer.running) | set(buffer.pending)
    if buffer.strict:
        again |= {group.group_id for group in buffer.leased} | {entry.key for entry in buffer.ready}
    state = {
        "format": SNAPSHOT_FORMAT,
        "version": buffer.version,
        "steps": buffer.committed_steps,
        "cursor": buffer.cursor,
        "in_flight": sorted(again),
        "ready": [group.dump() for group in kept],
        "drops": dict(buffer.drops),
        "refills": buffer.refills,
        "max_staleness_seen": buffer.max_staleness_seen,
    }
    return state, [group.payload for group in kept]


def restore(config: BufferConfig, state: Mapping[str, Any], payloads: Sequence[Any]) -> BufferState:
    """The buffer as it was at the snapshot; groups that were in samplers wait to be reissued under their ids.

    Raises RLTrainError when the snapshot cannot go on under this configuration.
    """
    ready = _groups(state, payloads)
    new = BufferState(config)
    new.version, new.cursor, new.committed_steps = state["version"], state["cursor"], state["steps"]
    new.pending = sorted(state["in_flight"])
    new.reissue = set(new.pending)
    for group in ready:
        new.ready.push(group.group_id, group, priority=group.priority)
    new.drops = Counter(state["drops"])
    new.refills = state.get("refills", 0)
    new.max_staleness_seen = state["max_staleness_seen"]
    if not new.keeps_bound():
        raise RLTrainError(
            "the checkpoint's ready groups are too old for buffer.maxStaleness "
            f"{config.max_staleness}: resume with the value the run had"
        )
    return new


def _groups(state: Mapping[str, Any], payloads: Sequence[Any]) -> list[Group]:
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
