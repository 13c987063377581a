"""When a group may start and which groups make the next batch: the two decisions that bound staleness.

Pure functions. Words and units used throughout:

- `B` = `groups_per_step`, groups in one batch; `eta` = `max_staleness`, in weight versions.
- `k` = `steps_per_version`: optimizer steps between two published versions (1 unless weights are published
  every k-th step). A batch taken as the s-th (from 0) is trained by the learner at version `floor(s / k)`.
- A group's *version* `d` is the one that was published when it was dispatched to a sampler. Every token of
  the group was sampled at version `d` or later, so the group's staleness is at most `floor(s / k) - d`.
- *Outstanding* groups are the admitted ones that are neither trained nor dropped: ready, running, or waiting
  to be (re)dispatched.

Why no group is ever too old, and none is ever discarded for age
----------------------------------------------------------------
A group dispatched at `d` must be in a batch `s` with `floor(s / k) - d <= eta`, that is
`s <= (d + eta + 1) k - 1`. Write `D(w) = (w + eta + 1) k` for the number of batches that may hold groups of
version `w` or older, and `n(w)` for the number of outstanding groups dispatched at version `w` or earlier.
Claim: before every batch s (s batches taken so far),

    I(s):   n(w) <= (D(w) - s) B   for every version w.

If I(s) holds for all s the bound holds: once `s = D(w)`, `n(w) <= 0`, so nothing of version w is left over.

1. *Admission keeps I.* With v published, a group is admitted only if the total of outstanding groups stays at
   or below `D(v) B - s B` (`may_start`: `consumed = s B`). The new group is counted in n(w) only for w >= v,
   where `n(w) <= total <= (D(v) - s) B <= (D(w) - s) B`.
2. *Time passing keeps I* in the sense needed: publishing changes neither n(w) nor s.
3. *Taking a batch keeps I.* After the batch, I(s + 1) asks for `n'(w) <= (D(w) - s - 1) B`, so the batch must
   hold at least `need(w) = n(w) - (D(w) - s - 1) B` groups of version w or older. By I(s), `need(w) <= B`.
   And `need(w) <= n(w)` whenever `D(w) > s`; for `D(w) <= s`, I(s) says `n(w) = 0`, and `need(w) <= 0` for
   the batches that come. So the B oldest outstanding groups meet all `need(w)` at once, and `select_batch`
   waits only for groups that are running, which end, are dropped, or are given back by a dead sampler: no
   deadlock.
4. *Dropping a group, or giving it back for redispatch*, lowers n(w). A redispatched group takes the version
   of that moment, and the total has not grown, so step 1's inequality covers it. A late result of a sampler
   that was given up is accepted only where `keeps_bound` says that I still holds.

For `eta = 0`, `k = 1` the batch is all B groups of the version: strictly on-policy.

The admission rule is AReaL's (`StalenessManager`): `free = min(max_concurrent - running,
(eta + version + 1) B - (accepted + running))`. What it lacks is step 3: choosing a batch by arrival alone can
leave an old group behind for one batch too many (SkyRL's documentation says so), which others repair by
discarding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadyEntry:
    """A ready group as batch selection sees it.

    `version`: weight version at dispatch. `priority`: larger goes first under order `priority`.
    `arrival`: completion order (0, 1, 2, ...).
    """

    group_id: int
    version: int
    arrival: int
    priority: float = 0.0


def may_start(
    *,
    consumed: int,
    ready: int,
    running: int,
    version: int,
    max_staleness: int,
    groups_per_step: int,
    slots_free: int,
    capacity: int | None = None,
    steps_per_version: int = 1,
) -> int:
    """How many more groups may start now: staleness budget, physical slots and reserved room, all in one.

    `consumed`: groups taken for training so far. `ready`, `running`: groups in the buffer and in samplers
    (include those waiting for redispatch in `running`: they hold budget). Dropped groups are in none of the
    three, so their budget returns. `slots_free`: groups the asking sampler can start. `capacity`: most groups
    that may be ready or running together (order `onFull: block` reserves room at dispatch); None where room
    is not reserved.
    """
    budget = (max_staleness + version + 1) * steps_per_version * groups_per_step - (
        consumed + ready + running
    )
    room = slots_free if capacity is None else min(slots_free, capacity - ready - running)
    return max(0, min(budget, room))


def needed_by_version(
    outstanding: Iterable[int],
    *,
    step: int,
    max_staleness: int,
    groups_per_step: int,
    steps_per_version: int = 1,
) -> list[tuple[int, int]]:
    """`[(w, need(w))]` for every version w that has outstanding groups and a positive need, oldest first.

    `outstanding`: versions of ready and running groups. `step`: batches taken so far (s). The next batch has
    to hold at least `need(w)` groups of version w or older.
    """
    needs = []
    versions = sorted(outstanding)
    for position, w in enumerate(versions, start=1):
        if position < len(versions) and versions[position] == w:
            continue  # count all groups of this version first
        later_batches = (w + max_staleness + 1) * steps_per_version - step - 1
        need = position - later_batches * groups_per_step
        if need > 0:
            needs.append((w, need))
    return needs


def keeps_bound(
    outstanding: Iterable[int],
    *,
    step: int,
    max_staleness: int,
    groups_per_step: int,
    steps_per_version: int = 1,
) -> bool:
    """Whether invariant I(step) holds for these versions: all of them can still be trained in time."""
    needs = needed_by_version(
        outstanding,
        step=step,
        max_staleness=max_staleness,
        groups_per_step=groups_per_step,
        steps_per_version=steps_per_version,
    )
    return all(need <= groups_per_step for _, need in needs)


def select_batch(
    ready: Sequence[ReadyEntry],
    running: Sequence[int],
    *,
    step: int,
    max_staleness: int,
    groups_per_step: int,
    order: str = "fifo",
    steps_per_version: int = 1,
) -> list[int] | None:
    """The ids of the `groups_per_step` groups to train on next, or None to wait for more to be ready.

    Parameters
    ----------
    ready: groups that can be taken. running: dispatch versions of the groups still in samplers.
    step: batches taken so far; the learner's version at this batch is `step // steps_per_version`.
    order: `fifo` (completion order) or `priority` (highest first, ties by completion).

    Groups whose deadline forces them into this batch come first, oldest version first; the rest are filled by
    `order`. The result lists them by that choice, except under `max_staleness` 0, where the batch is sorted
    by group id: the batch is then the same in every run.
    """
    if len(ready) < groups_per_step:
        return None
    if order == "priority":
        queue = sorted(ready, key=lambda entry: (-entry.priority, entry.arrival))
    else:
        queue = sorted(ready, key=lambda entry: entry.arrival)
    needs = needed_by_version(
        [entry.version for entry in ready] + list(running),
        step=step,
        max_staleness=max_staleness,
        groups_per_step=groups_per_step,
        steps_per_version=steps_per_version,
    )
    chosen: list[ReadyEntry] = []
    taken: set[int] = set()
    for w, need in needs:
        missing = need - sum(entry.version <= w for entry in chosen)
        if missing <= 0:
            continue
        urgent = [entry for entry in queue if entry.version <= w and entry.group_id not in taken]
        if len(urgent) < missing:
            return None  # a group this batch must hold is still running
        for entry in urgent[:missing]:
            chosen.append(entry)
            taken.add(entry.group_id)
    if len(chosen) > groups_per_step:
        raise AssertionError(
            "admission let in more groups than can be trained in time: its invariant was broken"
        )
    rest = [entry for entry in queue if entry.group_id not in taken]
    chosen += rest[: groups_per_step - len(chosen)]
    if max_staleness == 0:
        return sorted(entry.group_id for entry in chosen)
    return [entry.group_id for entry in chosen]
