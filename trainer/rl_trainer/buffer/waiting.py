"""Samplers that wait for work, and who of them gets what there is: those whom an event concerns, and nobody else. Pure.

Work is handed over, not announced: a call leaves the line with its tickets in the same turn in which they are given out.
So one that left before, by its deadline or with its sampler, takes nothing with it, and the next in line gets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rl_trainer.buffer.groups import Ticket
from rl_trainer.buffer.state import BufferState


@dataclass(eq=False)
class Call:
    """An `acquire` that waits.

    Attributes:
        sampler: who asks; registered as long as its call waits.
        groups: tickets it takes at most; 0: it waits for newer weights alone.
        known_version: of the weights that it has.
        future: an asyncio.Future, through which the actor answers it.
    """

    sampler: int
    groups: int
    known_version: int
    future: Any

    @property
    def is_open(self) -> bool:
        """Whether somebody still waits for the answer: a call that was cancelled leaves the line a moment later."""
        return not self.future.done()


class WaitingCalls:
    """The line, in order of arrival."""

    def __init__(self) -> None:
        # Dicts for their order. Those that take no tickets must not be in the way of those that do.
        self._all: dict[Call, None] = {}
        self._takers: dict[Call, None] = {}
        self._by_sampler: dict[int, dict[Call, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def join(self, call: Call) -> None:
        """It waits from now on: there was nothing for it."""
        self._all[call] = None
        self._by_sampler.setdefault(call.sampler, {})[call] = None
        if call.groups > 0:
            self._takers[call] = None

    def leave(self, call: Call) -> bool:
        """It waits no more. False: nor did it before."""
        if call not in self._all:
            return False
        del self._all[call]
        self._takers.pop(call, None)
        of_sampler = self._by_sampler[call.sampler]
        del of_sampler[call]
        if not of_sampler:
            del self._by_sampler[call.sampler]
        return True

    def leave_all(self, sampler: int | None = None) -> list[Call]:
        """All calls, or those of one sampler, leave; returns them in order."""
        calls = list(self._all if sampler is None else self._by_sampler.get(sampler, ()))
        for call in calls:
            self.leave(call)
        return calls

    def hand_out(self, state: BufferState) -> list[tuple[Call, list[Ticket]]]:
        """Tickets that `state` has for those in line, who leave with them; first come, first served where all can have them.

        To be asked for after each event that may have made room: a group was dropped, a batch taken, a sampler is gone.
        """
        served = []
        for call in list(self._concerned(state)) if self._takers else ():
            if not call.is_open:
                continue
            tickets = state.acquire(call.sampler, call.groups)
            if tickets:
                self.leave(call)
                served.append((call, tickets))
            elif not state.strict and not state.roster.shares_device(call.sampler):
                break  # what the first cannot have, nobody can
        return served

    def hand_out_newer(self, state: BufferState) -> list[tuple[Call, list[Ticket]]]:
        """Newer weights are there: all who have older ones leave, with what tickets there are for them; then `hand_out`."""
        older = [call for call in self._all if call.is_open and call.known_version < state.version]
        served = []
        for call in older:
            self.leave(call)
            served.append((call, state.acquire(call.sampler, call.groups)))
        return served + self.hand_out(state)

    def _concerned(self, state: BufferState) -> Iterable[Call]:
        if not state.strict:
            return self._takers
        return (
            call
            for sampler in state.assigned()
            for call in self._by_sampler.get(sampler, ())
            if call in self._takers
        )
