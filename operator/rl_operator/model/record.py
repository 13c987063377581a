"""What is kept of a run for its team: from its status, and for a while after its object is gone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rl_operator.model.names import Manifest

OUTCOMES: Final = ("trained", "started", "evicted", "failed")
"""What may become of accelerators, as `Usage` has it."""

RESULTS: Final = ("succeeded", "failed", "deleted")
"""What may become of a run; deleted: before its end."""

NODE_DRAINED: Final = "NodeDrained"
"""Reason of an eviction by which only the nodes are to be others."""

NOT_WANTED: Final = frozenset({"Retrying", "Stopping", "Suspended", "Finished"})
"""Reasons of ClusterReady with which a run wants no pods for now."""

_MOST_POOLS: Final = 32
_LONGEST: Final = 63


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """Accelerators in one pool: how many are held, and what became of them, in accelerator seconds."""

    accelerators: float = 0.0
    trained: float = 0.0
    unsaved: float = 0.0
    started: float = 0.0
    evicted: float = 0.0
    failed: float = 0.0

    @property
    def outcomes(self) -> dict[str, float]:
        """By `OUTCOMES`, as things are now."""
        return {outcome: getattr(self, outcome) for outcome in OUTCOMES}

    @property
    def settled(self) -> dict[str, float]:
        """By `OUTCOMES`, without what may still be lost: no figure ever falls."""
        return self.outcomes | {"trained": max(self.trained - self.unsaved, 0.0)}


@dataclass(frozen=True, slots=True)
class Record:
    """One run."""

    spec_hash: str = ""
    result: str = ""
    """One of `RESULTS`; empty: it goes on."""
    attempts: int = 0
    evictions: int = 0
    drained: int = 0
    """Of the evictions that are still listed, those by which only the nodes were to be others."""
    evicted: tuple[tuple[str, str], ...] = ()
    """Time and reason of the last evictions, oldest first."""
    pools: tuple[tuple[str, PoolRecord], ...] = ()
    waited: float = 0.0
    """Seconds for which it wanted pods and was not given any."""
    waits: bool = False
    """Whether it wants pods now, and has none."""


NO_RECORD: Final = Record()


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that waits in its queue."""

    queue: str
    position: int | None = None
    since: float | None = None


def record_of(status: Manifest) -> Record:
    """The record of a run, from its status as the API server holds it; what cannot be read counts as not known."""
    usage, attempts = object_in(status.get("usage")), _objects(status.get("attempts"))
    pools = sorted(object_in(usage.get("pools")).items())[:_MOST_POOLS]
    evictions = _objects(status.get("evictions"))
    phase = str(status.get("phase") or "")
    held = {name: _pool(object_in(pool)) for name, pool in pools}
    return Record(
        spec_hash=str(status.get("effectiveSpecHash") or "")[:_LONGEST],
        result=phase.lower() if phase in ("Succeeded", "Failed") else "",
        attempts=int(_amount(attempts[-1].get("number"))) if attempts else 0,
        evictions=max(len(evictions), int(sum(_amount(one.get("preemptions")) for one in attempts))),
        drained=sum(one.get("reason") == NODE_DRAINED for one in evictions),
        evicted=tuple(
            (str(one.get("time") or ""), str(one.get("reason") or "")[:_LONGEST]) for one in evictions
        ),
        pools=tuple((str(name), pool) for name, pool in held.items()),
        waited=_amount(usage.get("waitedSeconds")),
        waits=wants(status) and not any(pool.accelerators for pool in held.values()),
    )


def queued_of(status: Manifest, since: float | None) -> Queued | None:
    """Where a run waits in its queue; None: it does not."""
    queue = object_in(status.get("queue"))
    position = queue.get("position")
    if not queue.get("name") or not isinstance(position, int) or isinstance(position, bool):
        return None
    return Queued(str(queue["name"])[:_LONGEST], position, since)


def wants(status: Mapping[str, Any]) -> bool:
    """Whether a run with this status wants pods, if it has none."""
    found = _objects(status.get("conditions"))
    conditions = {str(one.get("type")): one.get("status") for one in found}
    over = any(conditions.get(kind) == "True" for kind in ("Succeeded", "Failed"))
    stopped = conditions.get("Suspended") in ("True", "Unknown")
    idle = any(one.get("type") == "ClusterReady" and one.get("reason") in NOT_WANTED for one in found)
    return conditions.get("Accepted") == "True" and not over and not stopped and not idle


def _pool(pool: Mapping[str, Any]) -> PoolRecord:
    return PoolRecord(
        accelerators=_amount(pool.get("accelerators")),
        trained=_amount(pool.get("trained")),
        unsaved=_amount(pool.get("unsaved")),
        started=_amount(pool.get("started")),
        evicted=_amount(pool.get("evicted")),
        failed=_amount(pool.get("failed")),
    )


def object_in(value: object) -> Mapping[str, Any]:
    """A JSON object; anything else counts as an empty one."""
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _amount(value: object) -> float:
    """A number that is none, or below 0, counts as 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        return 0.0
    return float(value)
