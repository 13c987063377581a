"""What became of the accelerators that a run had, and how long it waited for them: counted from look to look. Pure.

What a run has done since its usage was written is what its status says, as everything that changes that is written at once.
So an operator that restarts goes on from `updatedAt`. What happened meanwhile counts to now where the pods are still there,
from when the first pod had its node where there were none before, and where they are gone until the job ended, or for two
minutes where nobody can say when that was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Literal

from rl_api.progress import Attempt, Condition, PoolUsage, RunStatus, Usage
from rl_operator.decide.attempt.outcome import INTERRUPTED, NO_FAILURES, SUCCEEDED, code_of
from rl_operator.decide.look import Look
from rl_operator.decide.queueing import EVICTED
from rl_operator.model.decision import Decision, Note
from rl_operator.model.names import HEAD, LEARNER, SAMPLER
from rl_operator.model.record import NOT_WANTED
from rl_operator.model.seen import Pod
from rl_operator.plan.effective import Effective

REFRESH: Final = timedelta(seconds=60)
"""After this time the usage of a run with pods is written, though nothing else has changed."""

WAITING_REFRESH: Final = timedelta(seconds=300)
"""The same of a run that waits: what it did since then is known whenever it is looked at."""

UNSEEN: Final = timedelta(seconds=120)
"""For how long pods count that were seen last by an operator that ended, where it is not known when they went."""

UNKNOWN_POOL: Final = "unknown"
"""Pool of the pods of an attempt whose run can no longer be carried out as it stands."""

_SUMS: Final = ("accelerators", "trained", "unsaved", "started", "evicted", "failed")

Pools = Mapping[str, PoolUsage]


def with_usage(look: Look, decision: Decision) -> Decision:
    """The decision, with the usage up to now where its status is written anyway, or the usage was not for a while."""
    usage = counted(look, decision.status)
    if decision.status == look.old and not _due(look.old.usage, usage, look.now):
        return decision
    status = decision.status.model_copy(update={"usage": usage})
    over = _over(status) and not _over(look.old)
    notes = (_account(look, status, usage), *decision.notes) if over else decision.notes
    return replace(decision, status=status, notes=notes)


def _due(before: Usage | None, usage: Usage, now: datetime) -> bool:
    if before is None or before.updated_at is None:
        return False
    if before.accelerators > 0 and usage.accelerators == 0:
        return True  # of a run that is over nothing else may change for long
    age = now - before.updated_at
    if before.accelerators > 0 or usage.accelerators > 0:
        return age >= REFRESH
    return usage.waited_seconds > before.waited_seconds and age >= WAITING_REFRESH


def counted(look: Look, new: RunStatus) -> Usage:
    """Usage of a run up to now, whose status becomes `new`."""
    old, before = look.old, look.old.usage or Usage()
    held = _held(look, before)
    pools, waited = dict(before.pools), before.waited_seconds
    if before.updated_at is not None and look.now > before.updated_at:
        if before.accelerators > 0:
            seconds = (_until(look, new, before.updated_at, held) - before.updated_at).total_seconds()
            pools = _spent(before.pools, _doing(old), seconds)
        else:
            begun = _begun(look, before.updated_at) if held else look.now
            waited += (begun - before.updated_at).total_seconds() if _wants(old) else 0.0
            there = {
                name: pools.get(name, PoolUsage()).model_copy(update={"accelerators": count})
                for name, count in held.items()
            }
            pools |= _spent(there, _doing(new), (look.now - begun).total_seconds())
    kept = _lost(_saved(pools, old, new, look.now), old, new)
    pools = {
        name: kept.get(name, PoolUsage()).model_copy(update={"accelerators": held.get(name, 0.0)})
        for name in sorted({*before.pools, *kept, *held})
    }
    # One that was written stays: server-side apply makes a null, which is refused, of a map that loses all that it had.
    pools = {
        name: pool
        for name, pool in pools.items()
        if name in before.pools or any(getattr(pool, part) for part in _SUMS)
    }
    sums = {part: round(sum(getattr(pool, part) for pool in pools.values()), 3) for part in _SUMS}
    return Usage(**sums, pools=pools, waited_seconds=waited, updated_at=look.now)


def _spent(pools: Pools, doing: Literal["trained", "started"], seconds: float) -> dict[str, PoolUsage]:
    """The pools after so many seconds in which their accelerators did this."""
    found = {}
    for name, pool in pools.items():
        more = pool.accelerators * seconds
        changes: dict[str, float] = {doing: round(getattr(pool, doing) + more, 3)}
        if doing == "trained":
            changes["unsaved"] = round(pool.unsaved + more, 3)
        found[name] = pool.model_copy(update=changes)
    return found


def _saved(pools: Pools, old: RunStatus, new: RunStatus, now: datetime) -> Pools:
    """What a checkpoint that is new has saved can no longer be lost."""
    if new.checkpoint is None or new.checkpoint == old.checkpoint:
        return pools
    since = max((now - (new.checkpoint.time or now)).total_seconds(), 0.0)
    return {
        name: pool.model_copy(update={"unsaved": min(pool.unsaved, pool.accelerators * since)})
        for name, pool in pools.items()
    }


def _lost(pools: Pools, old: RunStatus, new: RunStatus) -> Pools:
    """What was not saved goes with an attempt that ended otherwise than in success, and with pods that were evicted."""
    known = {attempt.number for attempt in old.attempts if attempt.end_time is not None}
    ended = [one for one in new.attempts if one.end_time is not None and one.number not in known]
    to = _loss(ended[-1]) if ended else "evicted" if _evicted(old, new) else None
    if to is None:
        return pools
    found = {}
    for name, pool in pools.items():
        lost = min(pool.unsaved, pool.trained)
        changes: dict[str, float] = {"unsaved": 0.0}
        if to:
            changes |= {"trained": round(pool.trained - lost, 3), to: round(getattr(pool, to) + lost, 3)}
        found[name] = pool.model_copy(update=changes)
    return found


def _loss(attempt: Attempt) -> Literal["", "evicted", "failed"]:
    """To what an attempt that ended lost its last steps; empty: they are kept."""
    code = code_of(attempt)
    if code == SUCCEEDED:
        return ""
    return "evicted" if code in NO_FAILURES or code == INTERRUPTED else "failed"


def _evicted(old: RunStatus, new: RunStatus) -> bool:
    """Whether the pods went by an eviction, and the attempt goes on without them."""
    if new.evictions:
        newest = new.evictions[-1]
        if newest.released_time is None:
            return False  # a checkpoint may still come
        known = next((one for one in old.evictions if one.time == newest.time), None)
        if known is None or known.released_time is None:
            return True
    before, after = _condition(old, "Admitted"), _condition(new, "Admitted")
    return after is not None and after.reason == EVICTED and (before is None or before.reason != EVICTED)


def _doing(status: RunStatus) -> Literal["trained", "started"]:
    """What pods do under a status; a driver that says nothing trains until it is known to be dead."""
    training = _condition(status, "Training")
    return "trained" if training is not None and training.status != "False" else "started"


def _wants(status: RunStatus) -> bool:
    """Whether a run with this status, which has no pods, wants some."""
    accepted, ready = _condition(status, "Accepted"), _condition(status, "ClusterReady")
    suspended = _condition(status, "Suspended")
    if _over(status) or (suspended is not None and suspended.status != "False"):
        return False
    idle = ready is not None and ready.reason in NOT_WANTED
    return accepted is not None and accepted.status == "True" and not idle


def _over(status: RunStatus) -> bool:
    return any(one.type in ("Succeeded", "Failed") and one.status == "True" for one in status.conditions)


def _condition(status: RunStatus, kind: str) -> Condition | None:
    return next((one for one in status.conditions if one.type == kind), None)


def _begun(look: Look, since: datetime) -> datetime:
    """When the first of the pods had its node, of which there were none at `since`."""
    times = [pod.started for pod in _on_nodes(look) if pod.started is not None]
    return min(max(min(times, default=look.now), since), look.now)


def _until(look: Look, new: RunStatus, since: datetime, held: Mapping[str, float]) -> datetime:
    """Until when the pods that there were at `since` count."""
    if held or look.now - since <= UNSEEN:
        return look.now
    number = new.attempts[-1].number if new.attempts else 0
    ray = look.world.ray(number)
    ended = ray.ended if ray is not None else None
    return min(max(ended or since + UNSEEN, since), look.now)


def _on_nodes(look: Look) -> list[Pod]:
    """Pods of the run's attempts that hold a place on a node."""
    return [
        pod
        for pod in look.world.pods
        if pod.attempt and pod.node and not pod.gone and pod.phase not in ("Succeeded", "Failed")
    ]


def _held(look: Look, before: Usage) -> dict[str, float]:
    """Accelerators, or pods where a run has none, that are held now, by pool."""
    pods, found = _on_nodes(look), dict[str, float]()
    if pods and look.effective is None and not look.world.rays:
        return {name: pool.accelerators for name, pool in before.pools.items()}
    sizes = [(_pool(look.effective, pod.role), _size(look, pod)) for pod in pods]
    by_pods = _by_pods(look)
    for pool, size in sizes:
        found[pool] = found.get(pool, 0.0) + (1.0 if by_pods else size)
    return {pool: count for pool, count in found.items() if count}


def _by_pods(look: Look) -> bool:
    """Whether the run has no accelerators."""
    if look.effective is not None:
        return not any(role.accelerators for role in look.effective.roles)
    return not any(ray.asked.fixed.accelerators or ray.asked.sampler.accelerators for ray in look.world.rays)


def _pool(effective: Effective | None, role: str) -> str:
    if effective is None or not effective.has(role):
        return UNKNOWN_POOL
    return "+".join(pool.name for pool in effective.role(role).pools)


def _size(look: Look, pod: Pod) -> float:
    """Accelerators of one pod: as its run is carried out, else as KubeRay was asked for it."""
    if look.effective is not None and look.effective.has(pod.role):
        return float(look.effective.role(pod.role).accelerators)
    ray = look.world.ray(pod.attempt)
    if ray is None:
        return 0.0
    fixed, learners = ray.asked.fixed.accelerators, ray.asked.fixed.learners
    of_role = {
        SAMPLER: float(ray.asked.sampler.accelerators),
        LEARNER: fixed / max(learners, 1),
        HEAD: 0.0 if learners else float(fixed),
    }
    return of_role.get(pod.role, 0.0)


def evictions_of(status: RunStatus) -> int:
    """How often a run's pods were taken away: the last ones are listed, all are counted with their attempts."""
    return max(len(status.evictions), sum(attempt.preemptions for attempt in status.attempts))


def _account(look: Look, status: RunStatus, usage: Usage) -> Note:
    """What a run that is over has taken, for those who look for it when its object is gone."""
    unit = "pod hours" if _by_pods(look) else "accelerator hours"
    attempts = status.attempts[-1].number if status.attempts else 0
    lost = f"{_hours(usage.evicted)} lost to evictions, {_hours(usage.failed)} lost to failures"
    text = (
        f"{unit}: {_hours(usage.trained)} trained, {_hours(usage.started)} started, {lost}; waited "
        f"{_hours(usage.waited_seconds)} h; attempts: {attempts}; evictions: {evictions_of(status)}; spec "
        f"{status.effective_spec_hash or 'unknown'}"
    )
    return Note("Normal", "Accounted", text)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"
