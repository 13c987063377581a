"""When a group may start and which groups make the next batch: the two decisions that bound staleness.

Pure functions. Words and units used throughout:

- `B` = `groups_per_step`, groups in one batch; `eta` = `max_staleness`, in weight versions.
- `L` = `taken`: groups of the batch to come that are being trained on already, while others of it are still sampled (parts).
- `k` = `steps_per_version`: optimizer steps between two published versions (1 unless weights are published
  every k-th step). A batch taken as the s-th (from 0) is trained by the learner at version `floor(s / k)`.
- A group's *version* `d` is the one that was published when it was dispatched to a sampler. Every token of
  the group was sampled at version `d` or later, so the group's staleness is at most `floor(s / k) - d`.
- *Outstanding* groups are the admitted ones that are neither taken nor dropped: ready, running, or waiting
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
   of that moment, and the total has not grown, so step 1's inequality covers it. One that is handed over with what
   there is of it keeps the version of its oldest token, also while it waits: n(w) is what it was, or lower. A late result
   of a sampler that was given up is accepted only where `keeps_bound` says that I still holds.

For `eta = 0`, `k = 1` the batch is all B groups of the version: strictly on-policy.

A batch in parts
----------------
Taken in parts, batch s grows by m groups at a time until L = B, which is L = 0 of batch s + 1. The claim becomes

    I(s, L): n(w) <= (D(w) - s) B - L   for every version w that has outstanding groups,

and I(s, B) is I(s + 1, 0). Step 1 holds with L among the places that are gone: taking a part lowers the outstanding groups
and the places alike, so that it admits exactly what it would admit if the batch were taken at once. Step 3 with m for B:
I(s, L + m) asks for at least `need(w) = n(w) - ((D(w) - s) B - L - m)` groups of version w or older in the part. By
I(s, L), `need(w) <= m`; and `need(w) <= n(w)`, since `L + m <= B <= (D(w) - s) B` wherever n(w) > 0. So the m oldest
outstanding groups are always a choice, and a part waits for running groups only where what is left of the batch could not
hold them. A batch that is given up half taken returns its groups: n(w) grows by at most L, so I(s, L) gives I(s, 0).

Strictly on-policy a part holds the groups that come first by prompt (`first_by_prompt`), so that parts are the same in every
run: later prompts have higher ids, and what is ready is not dropped any more, as room was reserved for it, so those that
come first now come first in the whole batch.

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
    """The bound on staleness before the batch number `step` (s: batches taken so far), of which `taken` groups are taken."""

    step: int
    max_staleness: int
    groups_per_step: int
    steps_per_version: int = 1
    taken: int = 0

    @property
    def missing(self) -> int:
        """Groups that the batch still lacks: B - L."""
        return self.groups_per_step - self.taken

    def places(self, version: int) -> int:
        """How many groups of `version` or older the batches to come may hold: (D(version) - s) B - L."""
        batches = (version + self.max_staleness + 1) * self.steps_per_version - self.step
        return batches * self.groups_per_step - self.taken


def may_start(
    bound: Bound, *, version: int, ready: int, running: int, slots_free: int, capacity: int | None = None
) -> int:
    """How many more groups may start now: staleness budget, physical slots and reserved room, all in one.

    `version`: of the weights published last. `ready`, `running`: groups in the buffer and in samplers
    (include those waiting for redispatch in `running`: they hold budget). Dropped groups are in neither, so
    their budget returns. `slots_free`: groups the asking sampler can start. `capacity`: most groups
    that may be ready or running together (`onFull: block` and `maxStaleness: 0` reserve room at dispatch); None where room
    is not reserved.
    """
    budget = bound.places(version) - (ready + running)
    room = slots_free if capacity is None else min(slots_free, capacity - ready - running)
    return max(0, min(budget, room))


def needed_by_version(
    outstanding: Iterable[int], bound: Bound, groups: int | None = None
) -> list[tuple[int, int]]:
    """`[(w, need(w))]` for every version w that has outstanding groups and a positive need, oldest first.

    `outstanding`: versions of ready and running groups. The next `groups` that are taken (None: all that the batch lacks)
    have to hold at least `need(w)` of version w or older.
    """
    groups = bound.missing if groups is None else groups
    needs = []
    versions = sorted(outstanding)
    for position, w in enumerate(versions, start=1):
        if position < len(versions) and versions[position] == w:
            continue  # count all groups of this version first
        need = position - (bound.places(w) - groups)
        if need > 0:
            needs.append((w, need))
    return needs


def keeps_bound(outstanding: Iterable[int], bound: Bound) -> bool:
    """Whether invariant I(step, taken) holds for these versions: all of them can still be trained in time."""
    return all(need <= bound.missing for _, need in needed_by_version(outstanding, bound))


def select_batch(
    ready: Sequence[Entry[int, Group]],
    running: Sequence[int],
    bound: Bound,
    order: str = "fifo",
    groups: int | None = None,
) -> list[int] | None:
    """The ids of the groups to train on next, or None to wait for more to be ready.

    Parameters
    ----------
    ready: groups that can be taken, in completion order. running: dispatch versions of the groups still in samplers.
    order: `fifo` (completion order) or `priority` (highest first, ties by completion).
    groups: how many of those that the batch lacks; None: all of them.

    Groups whose deadline forces them into this batch or part come first, oldest version first; the rest are filled by
    `order`. The result lists them by that choice, except under `max_staleness` 0, where the batch is sorted
    by group id: the batch is then the same in every run.
    """
    count = bound.missing if groups is None else groups
    if len(ready) < count:
        return None
    queue = sorted(ready, key=lambda entry: -entry.priority) if order == "priority" else ready
    chosen: list[int] = []
    taken: set[int] = set()  # the same, to look up in
    for w, need in needed_by_version([*(entry.value.version for entry in ready), *running], bound, count):
        missing = need - len(chosen)  # all of them are older than w
        if missing <= 0:
            continue
        urgent = [entry for entry in queue if entry.value.version <= w and entry.key not in taken]
        if len(urgent) < missing:
            return None  # a group this batch must hold is still running
        chosen += [entry.key for entry in urgent[:missing]]
        taken.update(chosen)
    if len(chosen) > count:
        raise AssertionError(
            "admission let in more groups than can be trained in time: its invariant was broken"
        )
    rest = [entry.key for entry in queue if entry.key not in taken]
    ids = [*chosen, *rest[: count - len(chosen)]]
    return sorted(ids) if bound.max_staleness == 0 else ids


def first_by_prompt(ready: Iterable[int], unfinished: Iterable[int], groups: int) -> list[int] | None:
    """The ids of the first `groups` outstanding groups by prompt, or None while one of them is not ready.

    `ready`, `unfinished`: ids of groups that can be taken, and of those still in samplers or waiting for one.
    """
    there = set(ready)
    first = sorted([*there, *unfinished])[:groups]
    return first if len(first) == groups and there.issuperset(first) else None
