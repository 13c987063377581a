"""What all runs of a namespace come to: counted from what is seen of each, and kept when the run is gone. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rl_operator.model.figures import ENDED, Figures
from rl_operator.model.names import Key
from rl_operator.model.record import NO_RECORD, OUTCOMES, RESULTS, PoolRecord, Record

KEPT_SECONDS: Final = 600.0
"""For how long the record of a run that is gone is shown: a run may end and be deleted between two scrapes."""

_MOST_KEPT: Final = 1000


class Teams:
    """Sums by namespace since the process began. Nothing that is summed ever falls."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str, str], float] = {}
        """Accelerator seconds by namespace, pool and outcome."""
        self.waited: dict[str, float] = {}
        self.results: dict[tuple[str, str], int] = {}
        self.evictions: dict[tuple[str, str], int] = {}
        self._seen: dict[Key, Figures] | None = None
        self._gone: dict[Key, tuple[float, Figures]] = {}

    def see(self, figures: Mapping[Key, Figures], now: float) -> None:
        """Take in all runs there are. The first time is where counting begins: what they had before was counted by an
        operator before this one."""
        if self._seen is None:
            for key, one in figures.items():
                self._open(key[0], one.record)
            self._seen = dict(figures)
            return
        for key, one in figures.items():
            self._count(key, one)
        for key in self._seen.keys() - figures.keys():
            self.gone(key, None, now)
        for key in [key for key, (until, _) in self._gone.items() if until <= now]:
            del self._gone[key]

    def gone(self, key: Key, last: Figures | None, now: float) -> None:
        """A run was deleted, of which this is the last that was seen; None: what was seen before."""
        if self._seen is None:
            return
        if last is not None:
            self._count(key, last)
        known = self._seen.pop(key, None)
        if known is None:
            return
        record = _settled(known.record)
        if known.phase not in ENDED:
            record = replace(record, result="deleted")
        self._add(key[0], known.record, record)
        self._gone.pop(key, None)
        self._gone[key] = (now + KEPT_SECONDS, Figures(known.phase, known.made, record=record))
        while len(self._gone) > _MOST_KEPT:
            del self._gone[next(iter(self._gone))]

    def kept(self) -> dict[Key, Figures]:
        """Runs that are gone, and still shown."""
        return {key: figures for key, (_, figures) in self._gone.items()}

    def _count(self, key: Key, one: Figures) -> None:
        assert self._seen is not None
        before = self._seen.get(key)
        if before is not None and before.made != one.made:
            self._seen.pop(key)
            before = None
        if before is None and key in self._gone and self._gone[key][1].made == one.made:
            before = self._gone.pop(key)[1]  # the API server did not know the kind for a moment
        self._seen[key] = one
        if before is None or before.record != one.record:
            self._add(key[0], before.record if before is not None else NO_RECORD, one.record)

    def _open(self, namespace: str, record: Record) -> None:
        """Counters begin at 0, so that Prometheus sees the first rise."""
        self.waited.setdefault(namespace, 0.0)
        for result in RESULTS:
            self.results.setdefault((namespace, result), 0)
        for name, _ in record.pools:
            for outcome in OUTCOMES:
                self.seconds.setdefault((namespace, name, outcome), 0.0)

    def _add(self, namespace: str, before: Record, after: Record) -> None:
        self._open(namespace, after)
        known = dict(before.pools)
        for name, pool in after.pools:
            earlier = known.get(name, PoolRecord()).settled
            for outcome, seconds in pool.settled.items():
                self.seconds[namespace, name, outcome] += max(seconds - earlier[outcome], 0.0)
        self.waited[namespace] += max(after.waited - before.waited, 0.0)
        if after.result and after.result != before.result:
            self.results[namespace, after.result] += 1
        newest = max((time for time, _ in before.evicted), default="")
        for time, reason in after.evicted:
            if time > newest:
                self.evictions[namespace, reason] = self.evictions.get((namespace, reason), 0) + 1


def held_by_team(figures: Mapping[Key, Figures]) -> tuple[dict[tuple[str, str], float], dict[str, int]]:
    """Accelerators that are held now, by namespace and pool; and runs that want pods and have none, by namespace."""
    held: dict[tuple[str, str], float] = defaultdict(float)
    waiting: dict[str, int] = {}
    for (namespace, _), one in figures.items():
        waiting[namespace] = waiting.get(namespace, 0) + one.record.waits
        for name, pool in one.record.pools:
            held[namespace, name] += pool.accelerators
    return dict(held), waiting


def _settled(record: Record) -> Record:
    """The record of a run that is gone: what was not saved is lost."""
    pools = tuple(
        (
            name,
            replace(
                pool,
                accelerators=0.0,
                unsaved=0.0,
                trained=max(pool.trained - pool.unsaved, 0.0),
                failed=pool.failed + min(pool.unsaved, pool.trained),
            ),
        )
        for name, pool in record.pools
    )
    return replace(record, pools=pools, waits=False)
