"""What a sampler asks the buffer for: tickets, and weights that are newer than its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from rl_trainer.buffer.actor import Acquired
from rl_trainer.buffer.groups import Ticket
from rl_trainer.buffer.handle import Buffer

# The buffer answers an empty-handed `acquire` after this long; the sampler asks again.
POLL_SECONDS = 5.0


def is_older(acquired: Acquired, loaded: int | None) -> bool:
    """Whether the answer was overtaken by newer weights, of version `loaded`, which serve its tickets as well."""
    return loaded is not None and acquired.version <= loaded


class Supply:
    """For the thread of the sampler's loop, which never waits here.

    Attributes:
        held: what the buffer has answered, and is not begun yet.
    """

    def __init__(self, buffer: Buffer, rank: int, wake: Callable[[], None]):
        """`wake`: called from another thread when the buffer has answered."""
        self._buffer, self._rank, self._wake = buffer, rank, wake
        self.held: deque[Acquired] = deque()
        self._work: Future[Acquired] | None = None  # groups
        self._watch: Future[Acquired] | None = None  # weights, or the end, where no group is wanted

    @property
    def brings_weights(self) -> bool:
        """Whether some are to be loaded."""
        return any(one.weights is not None for one in self.held)

    def ask(self, groups: int, loaded: int | None) -> None:
        """For up to so many groups, unless it has been asked for some; for 0: only for what else is new.

        Args:
            groups: how many.
            loaded: version of the published weights in the engine; None: the model folder's.
        """
        if self._work is None and groups > 0:
            self._work = self._acquire(groups, loaded)
        elif self._watch is None and groups == 0:
            self._watch = self._acquire(0, loaded)

    def hear(self, loaded: int | None) -> bool:
        """Holds what the buffer has answered meanwhile, where it is of use; False: it says stop."""
        for future in [one for one in (self._work, self._watch) if one is not None and one.done()]:
            self._work = None if future is self._work else self._work
            self._watch = None if future is self._watch else self._watch
            acquired = future.result()
            if acquired.stop:
                return False
            if acquired.tickets or not is_older(acquired, loaded):
                self.held.append(acquired)
        return True

    def leave_out_lost(self) -> None:
        """Others may have got what is held here: those tickets are held no more."""
        if tickets := self._tickets:
            own = self._buffer.owned(self._rank, tickets)
            self.held = deque(
                replace(acquired, tickets=[one for one in acquired.tickets if one in own])
                for acquired in self.held
            )

    def give_up_tickets(self) -> list[Ticket]:
        """Those that are held, for others; weights that came with them are held on."""
        tickets = self._tickets
        self.held = deque(
            replace(acquired, tickets=[]) for acquired in self.held if acquired.weights is not None
        )
        return tickets

    @property
    def _tickets(self) -> list[Ticket]:
        return [ticket for acquired in self.held for ticket in acquired.tickets]

    def _acquire(self, groups: int, loaded: int | None) -> Future[Acquired]:
        # What is held comes to be loaded: it is not sent again while that has to wait.
        held = [acquired.version for acquired in self.held if acquired.weights is not None]
        known = max(held, default=-1 if loaded is None else loaded)
        reference = self._buffer.acquire_ref(self._rank, groups, POLL_SECONDS, known)
        future: Future[Acquired] = reference.future()
        future.add_done_callback(lambda _: self._wake())
        return future
