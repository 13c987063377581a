"""The buffer between samplers and learners: one Ray actor around `state.BufferState`. Others have its handle (`handle.py`).

How payloads travel, see `payloads.py`. A `put` is answered when its groups no longer depend on the sampler: then they are
never lost with it, nor with its node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rl_api.errors import DeadlineExceeded, RLTrainError
from rl_trainer.buffer.groups import BufferConfig, Handed, PutResult, Ticket
from rl_trainer.buffer.payloads import Arrivals
from rl_trainer.buffer.saved import restore, snapshot
from rl_trainer.buffer.state import BufferState
from rl_trainer.buffer.waiting import Call, WaitingCalls
from rl_trainer.flow.adoption import adopt
from rl_trainer.flow.changes import Changes
from rl_trainer.flow.lease_desk import LeaseDesk
from rl_trainer.flow.leases import LEARNERS, Wish
from rl_trainer.trajectory import Group


@dataclass(frozen=True)
class Acquired:
    """Answer to `acquire`: tickets (possibly none), the published version, its weights if the caller's are
    older.

    `weights` is what was published: whatever `publish` was given, usually `[object reference]`. `stop`: the
    run is over, or the sampler was released; finish nothing and return.
    """

    tickets: list[Ticket]
    version: int
    weights: Any | None = None
    stop: bool = False


@dataclass(frozen=True)
class Batch:
    """A batch under lease, or a part of one: `step` counts from 0; `groups` in training order."""

    step: int
    groups: list[Group]


def _reply(call: Call, acquired: Acquired) -> None:
    if call.is_open:
        call.future.set_result(acquired)


class BufferActor:
    """The actor. Every method runs on one event loop, so a state change is never seen half done."""

    def __init__(self, config: BufferConfig) -> None:
        self._config = config
        self._state = BufferState(config)
        self._weights: Any | None = None
        self._published = False
        self._stopping = False
        self._beats: dict[str, float] = {}
        self._unheard: set[str] = set()
        self._told: dict[str, Any] = {}
        self._waiting = WaitingCalls()
        self._takers = Changes()
        self._wanted: int | None = None  # groups of the batch that the last `take` asked for
        self._leases = LeaseDesk()
        self._arrivals = Arrivals()

    # -- samplers ------------------------------------------------------------------------------------------

    async def register(self, sampler: int) -> None:
        """See `BufferState.register`."""
        self._state.register(sampler)
        self._end_calls(sampler)
        self._after_change()

    async def release(self, sampler: int, lives: bool = False) -> list[int]:
        """See `BufferState.release`. An `acquire` that the sampler left behind gets nothing any more, and a device that it
        held is free, unless it `lives`: then it gives that back itself, as soon as it computes nothing there."""
        lost = self._state.release(sampler)
        self._beats.pop(f"sampler {sampler}", None)  # those of its successor are to come yet
        self._unheard.discard(f"sampler {sampler}")
        if not lives:
            self._leases.died(f"sampler {sampler}")
        self._end_calls(sampler)
        self._after_change()
        return lost

    async def hand_over(
        self, sampler: int, groups: Sequence[Handed], stay: Sequence[Ticket] = ()
    ) -> list[int]:
        """See `BufferState.hand_over` and, for the tickets of `stay`, `BufferState.keep`; the payload of each group is bytes
        or `[reference]`. Answered when the sampler may die."""
        for ticket in stay:
            self._state.keep(sampler, ticket.group_id, ticket.issue)
        kept = [
            replace(group, payload=await adopt(group.payload[0]))
            if isinstance(group.payload, list)
            else group
            for group in groups
        ]
        given = self._state.hand_over(sampler, kept)
        self._after_change()
        return given

    async def owned(self, sampler: int, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Those of `tickets` that are still this sampler's."""
        return [one for one in tickets if self._state.owns(sampler, one.group_id, one.issue)]

    async def acquire(
        self, sampler: int, max_groups: int, timeout: float, known_version: int = -1
    ) -> Acquired:
        """Tickets, waiting up to `timeout` seconds for at least one of: a ticket, newer weights, the end.

        There are no tickets before the first `publish`: after a restore the version of the weights is not
        known yet.
        """
        if self._stopping:
            return Acquired([], self._state.version, stop=True)
        self._state.check_registered(sampler)
        tickets = self._state.acquire(sampler, max_groups) if self._published else []
        newer = self._published and self._state.version > known_version
        if tickets or newer or timeout <= 0:
            return self._acquired(tickets, known_version)
        loop = asyncio.get_running_loop()
        call = Call(sampler, max_groups, known_version, loop.create_future())
        self._waiting.join(call)
        expiry = loop.call_later(timeout, self._expire, call)
        try:
            return cast(Acquired, await call.future)
        finally:
            expiry.cancel()
            self._waiting.leave(call)

    async def put(self, sampler: int, groups: Sequence[Group]) -> list[PutResult]:
        """Finished groups, the payload of each bytes or `[reference]`. Answered when sampler and node may die."""
        results = []
        for group in groups:
            if isinstance(group.payload, list):
                self._state.keep(sampler, group.group_id, group.issue)  # it is finished
                group = replace(group, payload=await adopt(group.payload[0]))
            result = self._state.put(sampler, self._arrivals.here(group), time.monotonic())
            results.append(result)
            # A group that stays is outstanding as before: there is no room for another, only a batch may be complete.
            self._after_change(room=not result.accepted or bool(result.dropped))
        return results

    async def drop(self, sampler: int, group_id: int, reason: str) -> bool:
        """See `BufferState.drop`."""
        dropped = self._state.drop(sampler, group_id, reason)
        self._after_change()
        return dropped

    def _after_change(self, room: bool = True) -> None:
        """Those get their answer whom the change concerns. `room`: another group may perhaps start now."""
        if self._state.may_have(self._wanted):
            self._takers.notify()
        if self._state.helped:
            self._leases.look_again()
        if room and self._published:
            self._answer(self._waiting.hand_out(self._state))

    def _answer(self, served: Iterable[tuple[Call, list[Ticket]]]) -> None:
        for call, tickets in served:
            _reply(call, self._acquired(tickets, call.known_version))

    def _acquired(self, tickets: list[Ticket], known_version: int) -> Acquired:
        newer = self._published and self._state.version > known_version
        return Acquired(tickets, self._state.version, self._weights if newer else None)

    def _expire(self, call: Call) -> None:
        if self._waiting.leave(call):
            _reply(call, Acquired([], self._state.version))

    def _end_calls(self, sampler: int | None = None) -> None:
        """All calls that wait, or those that one sampler left behind, are told to stop."""
        for call in self._waiting.leave_all(sampler):
            _reply(call, Acquired([], self._state.version, stop=True))

    # -- learner and driver --------------------------------------------------------------------------------

    async def publish(self, version: int, weights: Any) -> None:
        """Make `weights` of `version` the current ones; all samplers that wait and have older ones get them."""
        self._state.publish(version)
        self._weights, self._published = weights, True
        self._answer(self._waiting.hand_out_newer(self._state))

    async def take(self, timeout: float, begin: int = 0, end: int | None = None) -> Batch:
        """The next batch, under lease until `finish_step`, or its groups from `begin` up to `end` (not included), which
        come after those that were taken before. Raises DeadlineExceeded with what was missing."""
        deadline = time.monotonic() + timeout
        self._wanted = end
        while (groups := self._state.take(time.monotonic(), end)) is None:
            if not await self._takers.wait(deadline - time.monotonic()):
                what = "no batch" if end is None else f"no groups {begin} to {end - 1} of a batch"
                raise DeadlineExceeded(
                    f"{what} within {timeout:.0f} s: {self._state.waiting_for()}; "
                    "look at the samplers' logs, or give one step more time"
                )
        self._after_change()
        return Batch(self._state.committed_steps, groups[begin:])

    async def finish_step(self, step: int, version: int | None, weights: Any) -> dict[str, Any]:
        """The batch of `step` has been trained on, and `weights` of `version` are published if there are such.

        A step that was finished already is left alone. Returns `BufferState.metrics`, and `elsewhere_bytes`: of groups that
        came from other nodes since the step before.
        """
        if step > self._state.committed_steps:
            raise RLTrainError(
                f"commit of step {step}, but the batch under lease is step {self._state.committed_steps}"
            )
        if step == self._state.committed_steps:
            self._state.commit()
        if version is not None:
            await self.publish(version, weights)
        return self._state.metrics(time.monotonic()) | {"elsewhere_bytes": self._arrivals.drain()}

    async def snapshot(self) -> tuple[dict[str, Any], list[Any]]:
        """See `saved.snapshot`."""
        return snapshot(self._state)

    async def restore(self, state: Mapping[str, Any], payloads: Sequence[Any]) -> None:
        """Become the buffer of a checkpoint; samplers have to register again."""
        self._state = restore(self._config, state, payloads)
        self._published = False
        for call in self._waiting.leave_all():
            _reply(call, Acquired([], self._state.version))

    # -- turns on devices that samplers and learners share, see `flow.turns` ------------------------------

    async def claim(
        self,
        holder: str,
        devices: Sequence[str],
        timeout: float,
        priority: int = 0,
        turn: int = 0,
        anew: bool = False,
    ) -> int | None:
        """See `LeaseDesk.claim`."""
        if holder == LEARNERS:  # from the claim on: what samplers took now would wait with them
            self._state.learning = True
        try:
            epoch = await self._leases.claim(holder, devices, timeout, priority, turn=turn, anew=anew)
        except RLTrainError:
            self._learners_left(holder)
            raise
        if holder == LEARNERS and epoch is not None:
            self._state.recall()
            self._after_change()
        return epoch

    async def give_up(self, holder: str, turn: int = 0) -> None:
        """See `LeaseDesk.give_up`."""
        self._leases.give_up(holder, turn)
        self._learners_left(holder)

    async def waits(self, holder: str) -> bool:
        """See `LeaseDesk.waits`."""
        return self._leases.waits(holder)

    async def wanted(
        self, holder: str, epoch: int, timeout: float, helping: int | None = None
    ) -> Wish | None:
        """See `LeaseDesk.wanted`. `helping`: a sampler, which is done when its help is not needed any more."""
        return await self._leases.wanted(
            holder, epoch, timeout, lambda: helping is not None and self._state.is_done(helping)
        )

    async def give_back(self, holder: str, epoch: int) -> None:
        """See `LeaseDesk.give_back`. When learners are done, samplers that share their devices get groups again."""
        self._leases.give_back(holder, epoch)
        self._learners_left(holder)

    def _learners_left(self, holder: str) -> None:
        if holder == LEARNERS and not self._leases.knows(holder):  # else it came late, and they are back
            self._state.learning = False
            self._after_change()

    # -- signs of life, see `flow.pulse` -------------------------------------------------------------------

    async def expect(self, name: str, seconds: float) -> None:
        """The actor of this name is launched, and may take so many seconds until it lives."""
        self._beats[name] = time.monotonic() + seconds
        self._unheard.add(name)

    async def beat(self, name: str) -> None:
        """The actor of this name lives."""
        self._beats[name] = time.monotonic()
        self._unheard.discard(name)

    async def silent(self, limit: float) -> dict[str, bool]:
        """Those without a sign of life for `limit` seconds, from the time on that they may take to start; and whether they
        have ever given one. Of whoever is not expected and has given none nothing is known."""
        now = time.monotonic()
        return {name: name not in self._unheard for name, at in self._beats.items() if now - at > limit}

    async def tell(self, name: str, said: Any) -> None:
        """Keeps the last that the actor of this name says unasked."""
        self._told[name] = said

    async def told(self) -> dict[str, Any]:
        """What has been told last, by name."""
        return self._told

    async def stop(self) -> None:
        """The run is over: every `acquire` returns with `stop`, and samplers get no device any more."""
        self._stopping = True
        self._end_calls()
        self._leases.stop()
