"""Who holds accelerators, who waits for them, and what became of them: from run objects to tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from rl_cli.fields import instant, mapping, number, sentence, whole
from rl_cli.view import length, row
from rl_operator.model.names import Manifest
from rl_operator.model.record import wants

By = Literal["team", "run", "pool"]

SORTS: Final = ("held", "waited", "trained", "lost", "name")
"""By what rows may be sorted."""

_PARTS: Final = ("trained", "started", "evicted", "failed")
_NO_NAME: Final = "-"


@dataclass
class Sums:
    """What is held now, and what became of it, in accelerator seconds."""

    held: float = 0.0
    trained: float = 0.0
    started: float = 0.0
    evicted: float = 0.0
    failed: float = 0.0

    def add(self, other: Sums) -> None:
        """Take in another one."""
        self.held += other.held
        for part in _PARTS:
            setattr(self, part, getattr(self, part) + getattr(other, part))

    def hours(self) -> dict[str, float]:
        """Accelerator hours by what became of them."""
        return {part: round(getattr(self, part) / 3600, 3) for part in _PARTS}


@dataclass(frozen=True, kw_only=True)
class TopRun:
    """A run as it is shown. None: not known."""

    namespace: str
    name: str
    phase: str
    state: Literal["runs", "waits", "stands", "over"]
    """stands: it wants no pods, as it is suspended, refused, being stopped, or to be tried again later."""
    reason: str
    pools: Mapping[str, Sums]
    total: Sums
    waited: float
    """Seconds for which it wanted pods and was not given any, up to now."""
    queue: str
    position: int | None
    waiting: int | None
    sampler_busy: float | None
    learner_busy: float | None
    attempts: int
    evictions: int

    @property
    def place(self) -> str:
        """`3/7` in its queue."""
        if self.position is None:
            return _NO_NAME
        return f"{self.position}/{self.waiting}" if self.waiting is not None else str(self.position)

    def to_document(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            **{"namespace": self.namespace, "name": self.name, "phase": self.phase, "state": self.state},
            **{"reason": self.reason, "queue": self.queue or None, "position": self.position},
            **{
                "waiting": self.waiting,
                "accelerators": self.total.held,
                "waitedSeconds": round(self.waited, 3),
            },
            **{"samplerBusy": self.sampler_busy, "learnerBusy": self.learner_busy},
            **{"attempts": self.attempts, "evictions": self.evictions, "hours": self.total.hours()},
            "pools": {
                name: {"accelerators": one.held, "hours": one.hours()} for name, one in self.pools.items()
            },
        }


@dataclass
class Group:
    """All runs of a team, or all accelerators of a pool."""

    name: str
    sums: Sums = field(default_factory=Sums)
    pools: dict[str, float] = field(default_factory=dict)
    """Accelerators that are held now, by pool."""
    runs: int = 0
    """Runs that hold accelerators."""
    waits: int = 0
    waited: float = 0.0
    _busy: dict[str, tuple[float, float]] = field(default_factory=dict)

    def share(self, role: str) -> float | None:
        """Share of time for which a role works, of all runs that tell, by their accelerators."""
        total, weight = self._busy.get(role, (0.0, 0.0))
        return total / weight if weight else None

    def tells(self, role: str, share: float | None, weight: float) -> None:
        """A run that holds `weight` accelerators tells its share."""
        if share is not None and weight:
            total, known = self._busy.get(role, (0.0, 0.0))
            self._busy[role] = total + share * weight, known + weight

    def to_document(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            **{"name": self.name, "accelerators": self.sums.held, "pools": self.pools, "runs": self.runs},
            **{"waits": self.waits, "waitedSeconds": round(self.waited, 3), "hours": self.sums.hours()},
            **{"samplerBusy": self.share("sampler"), "learnerBusy": self.share("learner")},
        }


def top_run(run: Manifest, now: datetime) -> TopRun:
    """What is shown of a run, whatever wrote it: what is not of its kind is not known."""
    shown, status = row(run, now), mapping(run.get("status"))
    usage, queue, progress = (mapping(status.get(part)) for part in ("usage", "queue", "progress"))
    pools = {sentence(name): _sums(mapping(pool)) for name, pool in mapping(usage.get("pools")).items()}
    total = Sums()
    for pool in pools.values():
        total.add(pool)
    state: Literal["runs", "waits", "stands", "over"] = (
        "over"
        if shown.over
        else "runs"
        if total.held
        else "waits"
        if wants(status) and not shown.deleting
        else "stands"
    )
    waited, updated = _amount(usage.get("waitedSeconds")), instant(usage.get("updatedAt"))
    if state == "waits" and updated is not None:
        waited += max((now - updated).total_seconds(), 0.0)
    evictions, attempts = status.get("evictions"), status.get("attempts")
    listed = attempts if isinstance(attempts, list) else []
    preempted = sum(whole(mapping(one).get("preemptions")) or 0 for one in listed)
    return TopRun(
        namespace=shown.namespace,
        name=shown.name,
        phase=shown.phase,
        state=state,
        reason=shown.reason,
        pools=pools,
        total=total,
        waited=waited,
        queue=sentence(queue.get("name")),
        position=whole(queue.get("position")),
        waiting=whole(queue.get("waiting")),
        sampler_busy=number(progress.get("samplerBusy")) if state == "runs" else None,
        learner_busy=number(progress.get("learnerBusy")) if state == "runs" else None,
        attempts=shown.attempt or 0,
        evictions=max(len(evictions) if isinstance(evictions, list) else 0, preempted),
    )


def teams_of(runs: Iterable[TopRun]) -> list[Group]:
    """What the runs come to by namespace."""
    groups: dict[str, Group] = {}
    for run in runs:
        group = groups.setdefault(run.namespace, Group(run.namespace))
        group.sums.add(run.total)
        for name, pool in run.pools.items():
            if pool.held:
                group.pools[name] = group.pools.get(name, 0.0) + pool.held
        group.runs += run.state == "runs"
        group.waits += run.state == "waits"
        group.waited += run.waited
        group.tells("sampler", run.sampler_busy, run.total.held)
        group.tells("learner", run.learner_busy, run.total.held)
    return list(groups.values())


def pools_of(runs: Iterable[TopRun]) -> list[Group]:
    """What the runs come to by pool."""
    groups: dict[str, Group] = {}
    for run in runs:
        for name, pool in run.pools.items():
            group = groups.setdefault(name, Group(name))
            group.sums.add(pool)
            group.runs += pool.held > 0
            if pool.held:
                group.pools[name] = group.pools.get(name, 0.0) + pool.held
            group.tells("sampler", run.sampler_busy, pool.held)
            group.tells("learner", run.learner_busy, pool.held)
    return list(groups.values())


def sorted_runs(runs: Iterable[TopRun], by: str) -> list[TopRun]:
    """Runs in the order of `by`: held shows who runs first, then who waits as they stand in their queue."""
    turns = {"runs": 0, "waits": 1, "stands": 2, "over": 3}
    keys: dict[str, Callable[[TopRun], Any]] = {
        "held": lambda run: (turns[run.state], -run.total.held, run.queue, run.position or 0),
        "waited": lambda run: -run.waited,
        "trained": lambda run: -run.total.trained,
        "lost": lambda run: -(run.total.evicted + run.total.failed),
        "name": lambda _: 0,
    }
    return sorted(runs, key=lambda run: (keys[by](run), run.namespace, run.name))


def sorted_groups(groups: Iterable[Group], by: str) -> list[Group]:
    """Groups in the order of `by`."""
    keys: dict[str, Callable[[Group], float]] = {
        "held": lambda one: -one.sums.held,
        "waited": lambda one: -one.waited,
        "trained": lambda one: -one.sums.trained,
        "lost": lambda one: -(one.sums.evicted + one.sums.failed),
        "name": lambda _: 0.0,
    }
    return sorted(groups, key=lambda one: (keys[by](one), one.name))


def headline(runs: Sequence[TopRun]) -> str:
    """All of it in a line: `2 runs hold 16 accelerators, 1 waits; h100 16`."""
    holding = [run for run in runs if run.state == "runs"]
    held = sum(run.total.held for run in holding)
    waits = sum(run.state == "waits" for run in runs)
    found = (
        f"{_count(len(holding), 'run holds', 'runs hold')} {_count(held, 'accelerator', 'accelerators')}, "
        f"{_count(waits, 'waits', 'wait')}"
    )
    pools = sorted_groups((pool for pool in pools_of(runs) if pool.sums.held), "held")
    return (
        f"{found}; {', '.join(f'{pool.name} {_plain(pool.sums.held)}' for pool in pools)}" if pools else found
    )


def run_table(runs: Iterable[TopRun], *, namespaces: bool) -> list[list[str]]:
    """Heading and a line of cells for each run; the reason comes last."""
    table = [[*_HEAD_RUN[not namespaces :], *_HOURS, "WHY"]]
    for run in runs:
        pools = ",".join(name for name, pool in run.pools.items() if pool.held) or _NO_NAME
        cells = [run.namespace, run.name, run.phase, _plain(run.total.held), pools, run.place]
        cells += [_percent(run.sampler_busy), _percent(run.learner_busy)]
        table.append([*cells[not namespaces :], *_hour_cells(run.total, run.waited), run.reason])
    return table


def group_table(groups: Iterable[Group], by: By) -> list[list[str]]:
    """Heading and a line of cells for each team or pool; of a pool nobody knows who waits for it."""
    teams = by == "team"
    table = [[*(_HEAD_TEAM if teams else _HEAD_POOL), *(_HOURS if teams else _HOURS[:-1])]]
    for one in groups:
        pools = ",".join(f"{name}:{_plain(held)}" for name, held in sorted(one.pools.items())) or _NO_NAME
        cells = [one.name, str(one.runs), *([str(one.waits)] if teams else []), _plain(one.sums.held)]
        cells += [pools] if teams else []
        cells += [_percent(one.share("sampler")), _percent(one.share("learner"))]
        hours = _hour_cells(one.sums, one.waited)
        table.append([*cells, *(hours if teams else hours[:-1])])
    return table


def laid_out(table: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """The table as lines of text, cut to `width` columns."""
    widths = [max(len(line[index]) for line in table) for index in range(len(table[0]))]
    lines = [
        "  ".join(cell.ljust(widths[index]) for index, cell in enumerate(line)).rstrip() for line in table
    ]
    return [line if width is None else line[:width] for line in lines]


_HEAD_RUN: Final = ("NAMESPACE", "RUN", "PHASE", "HELD", "POOL", "QUEUE", "SAMPLERS", "LEARNERS")
_HEAD_TEAM: Final = ("TEAM", "RUN", "WAIT", "HELD", "POOLS", "SAMPLERS", "LEARNERS")
_HEAD_POOL: Final = ("POOL", "RUN", "HELD", "SAMPLERS", "LEARNERS")
_HOURS: Final = ("TRAINED", "STARTED", "EVICTED", "FAILED", "WAITED")


def _hour_cells(sums: Sums, waited: float) -> list[str]:
    return [*(f"{hours:.1f}h" for hours in sums.hours().values()), length(waited)]


def _sums(pool: Mapping[str, Any]) -> Sums:
    return Sums(_amount(pool.get("accelerators")), *(_amount(pool.get(part)) for part in _PARTS))


def _amount(value: object) -> float:
    return max(number(value) or 0.0, 0.0)


def _percent(share: float | None) -> str:
    return _NO_NAME if share is None else f"{share:.0%}"


def _plain(count: float) -> str:
    return f"{count:g}"


def _count(count: float, one: str, many: str) -> str:
    return f"{_plain(count)} {one if count == 1 else many}"
