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

MOST_KEPT: Final = 100
"""Runs of one namespace that are kept so: who makes and deletes many leaves the others theirs."""

FORGOTTEN_SECONDS: Final = 3600.0
"""How long after its last run the sums of a namespace are shown: Prometheus has scraped them, and namespaces come and go."""


class Teams:
    """Sums by namespace since the process began. Nothing that is summed ever falls; it begins anew in a namespace that had
    no run for long."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str, str], float] = {}
        """Accelerator seconds by namespace, pool and outcome."""
        self.waited: dict[str, float] = {}
        self.results: dict[tuple[str, str], int] = {}
        self.evictions: dict[tuple[str, str], int] = {}
        self._seen: dict[Key, Figures] | None = None
        self._gone: dict[str, dict[str, tuple[float, Figures]]] = {}
        """By namespace and name: until when it is kept, and what."""
        self._empty: dict[str, float] = {}
        """Since when a namespace has no run."""

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
        for namespace, kept in list(self._gone.items()):
            left = {name: one for name, one in kept.items() if one[0] > now}
            if left:
                self._gone[namespace] = left
            else:
                del self._gone[namespace]
        self._forget({namespace for namespace, _ in self._seen}, now)

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
        kept = self._gone.setdefault(key[0], {})
        kept.pop(key[1], None)
        kept[key[1]] = (now + KEPT_SECONDS, Figures(known.phase, known.made, record=record))
        if len(kept) > MOST_KEPT:
            del kept[next(iter(kept))]

    def kept(self) -> dict[Key, Figures]:
        """Runs that are gone, and still shown."""
        return {
            (namespace, name): figures
            for namespace, kept in self._gone.items()
            for name, (_, figures) in kept.items()
        }

    def _forget(self, there: set[str], now: float) -> None:
        """Drop the sums of namespaces that had no run for long."""
        gone = self.waited.keys() - there
        self._empty = {namespace: self._empty.get(namespace, now) for namespace in gone}
        old = {namespace for namespace, since in self._empty.items() if now - since >= FORGOTTEN_SECONDS}
        if not old:
            return
        self.seconds = {key: value for key, value in self.seconds.items() if key[0] not in old}
        self.waited = {key: value for key, value in self.waited.items() if key not in old}
        self.results = {key: value for key, value in self.results.items() if key[0] not in old}
        self.evictions = {key: value for key, value in self.evictions.items() if key[0] not in old}

    def _count(self, key: Key, one: Figures) -> None:
        assert self._seen is not None
        before = self._seen.get(key)
        if before is not None and before.made != one.made:
            self._seen.pop(key)
            before = None
        _, kept = self._gone.get(key[0], {}).get(key[1], (0.0, None))
        if before is None and kept is not None and kept.made == one.made:
            before = kept  # the API server did not know the kind for a moment
            del self._gone[key[0]][key[1]]
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
