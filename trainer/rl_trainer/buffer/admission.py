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
   or below `D(v) B - s B` (`may_start`). The new group is counted in n(w) only for w >= v,
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

from rl_trainer.flow.policies import Entry
from rl_trainer.trajectory import Group


@dataclass(frozen=True)
class Bound:
    """The bound on staleness before the batch number `step` (s: batches taken so far)."""

    step: int
    max_staleness: int
    groups_per_step: int
    steps_per_version: int = 1

    def batches(self, version: int) -> int:
        """How many of the batches to come may hold groups of `version` or older: D(version) - s."""
        return (version + self.max_staleness + 1) * self.steps_per_version - self.step


def may_start(
    bound: Bound, *, version: int, ready: int, running: int, slots_free: int, capacity: int | None = None
) -> int:
    """How many more groups may start now: staleness budget, physical slots and reserved room, all in one.

    `version`: of the weights published last. `ready`, `running`: groups in the buffer and in samplers
    (include those waiting for redispatch in `running`: they hold budget). Dropped groups are in neither, so
    their budget returns. `slots_free`: groups the asking sampler can start. `capacity`: most groups
    that may be ready or running together (order `onFull: block` reserves room at dispatch); None where room
    is not reserved.
    """
    budget = bound.batches(version) * bound.groups_per_step - (ready + running)
    room = slots_free if capacity is None else min(slots_free, capacity - ready - running)
    return max(0, min(budget, room))


def needed_by_version(outstanding: Iterable[int], bound: Bound) -> list[tuple[int, int]]:
    """`[(w, need(w))]` for every version w that has outstanding groups and a positive need, oldest first.

    `outstanding`: versions of ready and running groups. The next batch has to hold at least `need(w)` groups
    of version w or older.
    """
    needs = []
    versions = sorted(outstanding)
    for position, w in enumerate(versions, start=1):
        if position < len(versions) and versions[position] == w:
            continue  # count all groups of this version first
        need = position - (bound.batches(w) - 1) * bound.groups_per_step
        if need > 0:
            needs.append((w, need))
    return needs


def keeps_bound(outstanding: Iterable[int], bound: Bound) -> bool:
    """Whether invariant I(step) holds for these versions: all of them can still be trained in time."""
    return all(need <= bound.groups_per_step for _, need in needed_by_version(outstanding, bound))


def select_batch(
    ready: Sequence[Entry[int, Group]], running: Sequence[int], bound: Bound, order: str = "fifo"
) -> list[int] | None:
    """The ids of the `groups_per_step` groups to train on next, or None to wait for more to be ready.

    Parameters
    ----------
    ready: groups that can be taken, in completion order. running: dispatch versions of the groups still in samplers.
    order: `fifo` (completion order) or `priority` (highest first, ties by completion).

    Groups whose deadline forces them into this batch come first, oldest version first; the rest are filled by
    `order`. The result lists them by that choice, except under `max_staleness` 0, where the batch is sorted
    by group id: the batch is then the same in every run.
    """
    if len(ready) < bound.groups_per_step:
        return None
    queue = sorted(ready, key=lambda entry: -entry.priority) if order == "priority" else ready
    chosen: list[int] = []
    taken: set[int] = set()  # the same, to look up in
    for w, need in needed_by_version([*(entry.value.version for entry in ready), *running], bound):
        missing = need - len(chosen)  # all of them are older than w
        if missing <= 0:
            continue
        urgent = [entry for entry in queue if entry.value.version <= w and entry.key not in taken]
        if len(urgent) < missing:
            return None  # a group this batch must hold is still running
        chosen += [entry.key for entry in urgent[:missing]]
        taken.update(chosen)
    if len(chosen) > bound.groups_per_step:
        raise AssertionError(
            "admission let in more groups than can be trained in time: its invariant was broken"
        )
    rest = [entry.key for entry in queue if entry.key not in taken]
    ids = [*chosen, *rest[: bound.groups_per_step - len(chosen)]]
    return sorted(ids) if bound.max_staleness == 0 else ids
