"""The buffer's state machine: tickets out, groups in, batches out. Pure; the Ray actor in `actor.py` only
carries it.

The life of a group::

    admitted -> running (a sampler holds its ticket) -> ready -> leased (in the batch being trained) ->
    committed
                   |  ^                                   |
                   |  pending (its sampler was released)  dropped (reason counted; its budget returns)
                   +-> dropped

A group id is the index of its prompt, which is the prompt cursor: ids are handed out 0, 1, 2, ... and each is
committed or dropped exactly once. `take` leases a batch, or the first part of one, which later calls make whole, and gives
the same groups again until `commit`.
Groups whose rewards are all equal are refused while the batch to come has refills left (DAPO's dynamic sampling): they
count as dropped, their budget returns, and so another group is started in their place.
A sampler that leaves a device to learners hands its groups over: they wait with what there is of them, keep the version of
their oldest token, and go to a sampler that has a device of its own, if there is one. What was handed over is kept until the
group is ready: whoever takes it may die as well, and the next one goes on from the same place.
Under `max_staleness` 0 the assignment of ids to samplers is fixed (id modulo samplers), so every run with the
same samplers is the same. One that joins later takes its share of the ids that are not assigned yet.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.algorithms.advantages import zero_variance
from rl_trainer.buffer.admission import Bound, first_by_prompt, keeps_bound, may_start, select_batch
from rl_trainer.buffer.groups import BufferConfig, Handed, PutResult, Ticket
from rl_trainer.buffer.roster import Roster
from rl_trainer.flow.metering import FillAlarm, RateMeter
from rl_trainer.flow.policies import OrderedStore, on_arrival
from rl_trainer.trajectory import Group


class BufferState:
    """All decisions of the buffer. Methods take the time as `now` (seconds); none of them waits."""

    def __init__(self, config: BufferConfig) -> None:
        self.config = config
        self.version = 0
        self.cursor = 0
        self.committed_steps = 0
        self.running: dict[int, tuple[int, int]] = {}  # group id -> (sampler, dispatch version)
        self._issues: dict[int, int] = {}  # of the last ticket of pending and running ones
        self._issued = 0
        self.pending: list[int] = []  # admitted, waiting for (re)dispatch; sorted
        self.reissue: set[int] = set()  # the pending ones that were dispatched before
        self.learning = False  # learners have the devices that samplers share, or wait for them
        self.begun: dict[int, Handed] = {}  # pending and running ones that were handed over with tokens
        self.kept: set[int] = set()  # running ones that their samplers end without a device
        self._by_home: dict[int, list[int]] | None = None  # `_homes`; None: to be found anew
        self._homes_alone = False
        self.ready: OrderedStore[int, Group] = OrderedStore(config.order)
        self.leased: list[Group] = []  # groups of one batch; not all of them while it is taken in parts
        self.roster = Roster(config.samplers, config.shared_samplers)
        self.drops: Counter[str] = Counter()
        self.refills = 0  # since the last batch was taken
        self.max_staleness_seen = 0
        self.in_meter, self.out_meter = RateMeter(), RateMeter()
        self.alarm = FillAlarm(config.alarm_seconds)

    # -- numbers -------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Batches taken so far (the one under lease included, once it is whole)."""
        return self.committed_steps + self._whole

    @property
    def _whole(self) -> bool:
        return len(self.leased) == self.config.groups_per_step

    @property
    def strict(self) -> bool:
        """Strictly on-policy: assignment and batches are the same in every run."""
        return self.config.max_staleness == 0

    def _bound(self) -> Bound:
        config = self.config
        taken = 0 if self._whole else len(self.leased)
        return Bound(self.step, config.max_staleness, config.groups_per_step, config.steps_per_version, taken)

    def _outstanding_versions(self) -> list[int]:
        return [entry.value.version for entry in self.ready] + self._unfinished_versions()

    def _unfinished_versions(self) -> list[int]:
        """Of groups that have a version and are not ready: running ones, and those that were handed over with tokens."""
        waiting = [
            handed.version
            for group_id, handed in self.begun.items()
            if group_id not in self.running and handed.version is not None
        ]
        return [version for _, version in self.running.values()] + waiting

    def _begun_version(self, group_id: int) -> int:
        """The version that a group has when it is dispatched now."""
        handed = self.begun.get(group_id)
        return self.version if handed is None or handed.version is None else handed.version

    # -- samplers ------------------------------------------------------------------------------------------

    def register(self, sampler: int) -> None:
        """A sampler (rank 0, 1, ...) is there, or back; tickets of its former life are given back."""
        self.release(sampler)
        self.roster.join(sampler)

    def release(self, sampler: int) -> list[int]:
        """A sampler is gone: its unfinished groups will be reissued under the same ids. Returns those ids."""
        lost = sorted(group_id for group_id, (holder, _) in self.running.items() if holder == sampler)
        for group_id in lost:
            del self.running[group_id]
            bisect.insort(self.pending, group_id)
            self.reissue.add(group_id)
        self.kept.difference_update(lost)
        self.roster.leave(sampler)
        self._by_home = None
        return lost

    def hand_over(self, sampler: int, groups: Sequence[Handed]) -> list[int]:
        """A sampler gives groups that it has begun to others, and stays. Returns the ids of those that were its own.

        Raises RLTrainError for one that holds tokens older than its ticket's version.
        """
        given = []
        for handed in groups:
            if not self.owns(sampler, handed.group_id, handed.issue):
                continue  # it was taken from it, or is ready
            _, version = self.running[handed.group_id]
            if handed.version is not None and handed.version < version:
                raise RLTrainError(
                    f"sampler {sampler} hands over group {handed.group_id} with tokens of weight version {handed.version}, "
                    f"older than version {version} of its ticket: load the weights that came with the ticket"
                )
            del self.running[handed.group_id]
            bisect.insort(self.pending, handed.group_id)
            self.reissue.add(handed.group_id)
            if handed.version is not None:
                self.begun[handed.group_id] = handed
            given.append(handed.group_id)
        self.kept.difference_update(given)
        self._by_home = None
        return given

    def owns(self, sampler: int, group_id: int, issue: int | None) -> bool:
        """Whether this sampler has the group's ticket, and it is the one of this number; None: whichever."""
        holder, _ = self.running.get(group_id, (None, 0))
        return holder == sampler and issue in (None, self._issues[group_id])

    def keep(self, sampler: int, group_id: int, issue: int | None) -> None:
        """Of this group nothing is left to sample: the sampler waits for its scores, or hands it in already."""
        if self.owns(sampler, group_id, issue):
            self.kept.add(group_id)

    def recall(self) -> None:
        """Learners have the devices, and what was begun there was handed over: what samplers there hold they have got since,
        but for what they `keep`, and others sample it, since learners may keep the devices till it is there."""
        for group_id, (sampler, _) in list(self.running.items()):
            moves = self.config.all_move and group_id not in self.kept
            if moves and sampler < self.config.shared_samplers:
                self.hand_over(sampler, [Handed(group_id, None)])

    @property
    def helped(self) -> bool:
        """Whether so much of the batch is finished that samplers on learners' devices leave the rest to the others."""
        share, taken = self.config.hand_over_at, 0 if self._whole else len(self.leased)
        return share is not None and taken + len(self.ready) >= share * self.config.groups_per_step

    def is_done(self, sampler: int) -> bool:
        """Whether this sampler leaves the rest of the batch to others."""
        return self.helped and self.roster.shares_device(sampler)

    def _homes(self) -> dict[int, list[int]]:
        """Pending ids by the sampler that gets them in strict mode."""
        # While samplers that share devices get nothing, others have their share as well: a part may need one of it.
        alone = self.learning or self.helped
        if self._by_home is None or self._homes_alone != alone:
            self._by_home, self._homes_alone = {}, alone
            for group_id in self.pending:
                home = self.roster.home(group_id, moves=group_id in self.begun or alone)
                self._by_home.setdefault(home, []).append(group_id)
        return self._by_home

    def assigned(self) -> list[int]:
        """In strict mode: the samplers that have groups to start, whether they have asked for them or not."""
        self._admit(self.config.groups_per_step)
        return [sampler for sampler, group_ids in self._homes().items() if group_ids]

    def _admit(self, slots_free: int) -> None:
        """New groups, as many as may start, wait for dispatch from now on."""
        allowed = may_start(
            self._bound(),
            version=self.version,
            ready=len(self.ready),
            running=len(self.running) + len(self.pending),
            slots_free=slots_free,
            # Strictly on-policy what is dropped would be another one in each run, and parts wait for those that come first.
            capacity=self.config.capacity if self.strict or self.config.on_full == "block" else None,
        )
        if allowed:
            # The cursor is above every id given out, so the list stays sorted.
            self.pending.extend(range(self.cursor, self.cursor + allowed))
            self.cursor += allowed
            self._by_home = None

    def check_registered(self, sampler: int) -> None:
        """Raises RLTrainError for a sampler that is not there."""
        if sampler not in self.roster.registered:
            raise RLTrainError(f"sampler {sampler} asked for work but is not registered: call register first")

    def acquire(self, sampler: int, max_groups: int) -> list[Ticket]:
        """Up to `max_groups` tickets for this sampler, possibly none."""
        self.check_registered(sampler)
        shares = sampler < self.config.shared_samplers
        if (self.learning and shares) or self.is_done(sampler):
            return []  # what it took now would wait for its device, while others have theirs
        # In strict mode the whole budget is laid out first, then each sampler takes its share of it.
        there = self._open_to(sampler)
        self._admit(self.config.groups_per_step if self.strict else max(0, max_groups - len(there)))
        available = self._homes().get(sampler, []) if self.strict else self._open_to(sampler)
        mine = available[: max(0, max_groups)]
        if self.strict:
            del available[: len(mine)]
        tickets = []
        for group_id in mine:
            del self.pending[bisect.bisect_left(self.pending, group_id)]
            version, handed = self._begun_version(group_id), self.begun.get(group_id)
            self.running[group_id] = (sampler, version)
            self._issued += 1
            self._issues[group_id] = self._issued
            begun = None if handed is None else handed.payload
            tickets.append(Ticket(group_id, version, group_id in self.reissue, begun, self._issued))
            self.reissue.discard(group_id)
        return tickets

    def _open_to(self, sampler: int) -> list[int]:
        """Pending ones that this sampler may have, where they are not assigned."""
        if not self.begun or not self.roster.shares_device(sampler):
            return self.pending
        return [group_id for group_id in self.pending if group_id not in self.begun]

    # -- groups in -----------------------------------------------------------------------------------------

    def put(self, sampler: int, group: Group, now: float = 0.0) -> PutResult:
        """A finished group. Idempotent by group id; of two samplers that made the same group the first wins.

        Raises RLTrainError for a group that was never issued or holds tokens older than its ticket's version.
        """
        group_id = group.group_id
        if group_id >= self.cursor or group_id < 0:
            raise RLTrainError(f"sampler {sampler} put group {group_id}, which was never issued")
        if group_id not in self.running and group_id not in self.reissue:
            return PutResult(False, "duplicate")
        _, version = self.running.get(group_id, (None, group.min_version))
        if not self.owns(sampler, group_id, group.issue):
            # The result for a ticket that was taken back came after all. That is forgotten, so its oldest token
            # says how old it is; take it if it can still be trained in time.
            version = group.min_version
            others = self._outstanding_versions()
            if group_id in self.running:
                others.remove(self.running[group_id][1])
            elif group_id in self.begun and (waits := self.begun[group_id].version) is not None:
                others.remove(waits)
            if not keeps_bound([*others, version], self._bound()):
                return PutResult(False, "late")
        if group.min_version < version:
            raise RLTrainError(
                f"sampler {sampler} put group {group_id} with tokens of weight version {group.min_version}, "
                f"older than version {version} of its ticket: load the weights that came with the ticket"
            )
        self._forget_ticket(group_id)
        self.in_meter.add(now)
        if self.refills < self.config.max_refills and zero_variance(group.rewards):
            self.refills += 1
            self.drops["zero_variance"] += 1
            return PutResult(False, "zero_variance")
        dropped: list[int] = []
        while True:
            verdict = on_arrival(self.config.on_full, len(self.ready), self.config.capacity)
            if verdict != "drop":
                break
            oldest = self.ready.oldest()
            assert oldest is not None
            self.ready.remove(oldest.key)
            self.drops["buffer_full"] += 1
            dropped.append(oldest.key)
        if verdict == "reject":
            self.drops["rejected"] += 1
            return PutResult(False, "rejected")
        # Verdict "wait" cannot be: with policy block, room was reserved when the ticket was given.
        self.ready.push(group_id, replace(group, version=version), priority=group.priority)
        self.alarm.observe(now, len(self.ready), self.config.capacity)
        return PutResult(True, None, tuple(dropped))

    def drop(self, sampler: int, group_id: int, reason: str) -> bool:
        """Give a group up for good, counting the reason. False if this sampler does not hold it."""
        holder, _ = self.running.get(group_id, (None, None))
        if holder != sampler:
            return False
        self._forget_ticket(group_id)
        self.drops[reason] += 1
        return True

    def _forget_ticket(self, group_id: int) -> None:
        self.running.pop(group_id, None)
        self.begun.pop(group_id, None)
        self.kept.discard(group_id)
        self._issues.pop(group_id, None)
        if group_id in self.reissue:
            self.reissue.discard(group_id)
            self.pending.remove(group_id)
            self._by_home = None

    # -- batches out ---------------------------------------------------------------------------------------

    def may_have(self, groups: int | None = None) -> bool:
        """Whether it is worth while to try `take`, which looks at every group."""
        return len(self.ready) >= self._size(groups) - len(self.leased)

    def take(self, now: float = 0.0, groups: int | None = None) -> list[Group] | None:
        """The next batch, under lease until `commit`; the same batch again while it is; None: wait.

        `groups`: the first so many of the batch, which stay the first of it; None: all.
        """
        size = self._size(groups)
        if not self.may_have(groups):
            return None
        if missing := max(0, size - len(self.leased)):
            chosen = self._choose(missing)
            if chosen is None:
                return None
            trained_at = self.step // self.config.steps_per_version
            part = [self.ready.remove(group_id).value for group_id in chosen]
            self.leased += part
            if self._whole:
                self.refills = 0
            self.out_meter.add(now, len(chosen))
            self.alarm.observe(now, len(self.ready), self.config.capacity)
            oldest = min(group.version for group in part)
            self.max_staleness_seen = max(self.max_staleness_seen, trained_at - oldest)
        return self.leased[:size]

    def _size(self, groups: int | None) -> int:
        return self.config.groups_per_step if groups is None else groups

    def _choose(self, groups: int) -> list[int] | None:
        if self.strict and groups < self.config.groups_per_step:
            unfinished = [*self.running, *self.pending]
            return first_by_prompt((entry.key for entry in self.ready), unfinished, groups)
        unready = self._unfinished_versions()
        return select_batch(list(self.ready), unready, self._bound(), self.config.order, groups)

    def commit(self) -> int:
        """The batch under lease has been trained on: forget it. Returns the batches trained so far."""
        if not self._whole:
            size = self.config.groups_per_step
            found = (
                f"only {len(self.leased)} of {size} groups of a batch are" if self.leased else "no batch is"
            )
            raise RLTrainError(f"commit was called, but {found} under lease: take one first")
        self.leased = []
        self.committed_steps += 1
        return self.committed_steps

    def publish(self, version: int) -> None:
        """Weights of `version` are there; tickets from now on carry it. Versions count 0, 1, 2, ..."""
        if version < self.version:
            raise RLTrainError(f"weights of version {version} were published after version {self.version}")
        if version * self.config.steps_per_version > self.step:
            raise RLTrainError(
                f"weights of version {version} were published after {self.step} training steps: "
                f"a version is {self.config.steps_per_version} optimizer step(s)"
            )
        self.version = version

    # -- looking in ----------------------------------------------------------------------------------------

    def keeps_bound(self) -> bool:
        """Whether every group that has a version can be trained on in time."""
        return keeps_bound(self._outstanding_versions(), self._bound())

    def waiting_for(self) -> str:
        """What a consumer that has no batch is waiting for, as part of a sentence."""
        missing = self.config.groups_per_step - len(self.leased)
        return (
            f"{len(self.ready)} of {missing} groups are ready, {len(self.running)} are "
            f"running in {len(self.roster.registered)} samplers, {len(self.pending)} wait for a sampler, "
            f"weight version {self.version}"
        )

    def metrics(self, now: float) -> dict[str, Any]:
        """What is recorded after every step, JSON-able. Rates are groups per second."""
        self.alarm.observe(now, len(self.ready), self.config.capacity)
        return {
            "ready": len(self.ready),
            "in_rate": self.in_meter.rate(now),
            "out_rate": self.out_meter.rate(now),
            "drops": dict(self.drops),
            "max_staleness_seen": self.max_staleness_seen,
            "samplers": sorted(self.roster.registered),
            "alarms": self.alarm.sentences(now),
        }
