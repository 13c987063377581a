"""Leases inside an asynchronous actor: claims wait there, each with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from rl_api.errors import DeadlineExceeded
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.flow.changes import Changes
from rl_trainer.flow.leases import Lease, LeaseTable, Wish


class LeaseDesk:
    """Carries a `LeaseTable`. Every method runs on one event loop."""

    def __init__(self) -> None:
        self._table = LeaseTable()
        self._waiting: dict[str, asyncio.Future[int | None]] = {}
        self._since: dict[str, float] = {}  # by holder, of its lease
        self._changes = Changes()

    async def claim(
        self,
        holder: str,
        devices: Sequence[str],
        timeout: float,
        priority: int = 0,
        *,
        turn: int = 0,
        anew: bool = False,
    ) -> int | None:
        """All of `devices` together, as `LeaseTable.claim`.

        Returns:
            The lease's epoch; None: the run is over, where `priority` is 0. An export comes after it, at a higher one.

        Raises:
            DeadlineExceeded: not within `timeout` seconds; names who has them.
            RLTrainError: see `LeaseTable.claim`.
        """
        granted = self._table.claim(holder, devices, priority, turn=turn, anew=anew)
        self._answer(holder, None)  # to one that is over by this one
        self._tell(granted)
        if epoch := next((lease.epoch for lease in granted if lease.holder == holder), None):
            return epoch
        return await self._granted(holder, devices, timeout) if self._table.knows(holder) else None

    async def _granted(self, holder: str, devices: Sequence[str], timeout: float) -> int | None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int | None] = loop.create_future()
        self._waiting[holder] = future
        self._changes.notify()  # who holds them is told
        expiry = loop.call_later(timeout, self._expire, holder, future, devices, timeout)
        try:
            return await future
        finally:
            expiry.cancel()

    def _expire(
        self, holder: str, future: asyncio.Future[int | None], devices: Sequence[str], timeout: float
    ) -> None:
        if future.done():
            return
        now = time.monotonic()
        theirs = [
            f"{one} for {now - self._since.get(one, now):.0f} s" for one in self._table.holders(devices)
        ]
        del self._waiting[holder]
        self._tell(self._table.withdraw(holder))
        future.set_exception(
            DeadlineExceeded(
                f"{holder}: the devices of {', '.join(devices)} were not free within {timeout:.0f} s, held by "
                f"{' and '.join(theirs) or 'nobody'}; look at what that process does, then {RESUME_HINT}"
            )
        )

    async def wanted(
        self, holder: str, epoch: int, timeout: float, done: Callable[[], bool] = lambda: False
    ) -> Wish | None:
        """wanted: somebody waits for what the holder has, or it has it no more; done: it is `done` with it. Answered as soon
        as it is so, or after `timeout` seconds with None. `look_again` says that `done` may have changed."""
        deadline = time.monotonic() + timeout
        while self._table.holds(holder, epoch) and not self._table.wanted(holder):
            if done():
                return "done"
            if not await self._changes.wait(deadline - time.monotonic()):
                return None
        return "wanted"

    def look_again(self) -> None:
        """Those who wait to hear that they are wanted are to ask again whether they are done."""
        self._changes.notify()

    def give_back(self, holder: str, epoch: int) -> None:
        """See `LeaseTable.release`."""
        self._tell(self._table.release(holder, epoch))

    def died(self, holder: str) -> None:
        """See `LeaseTable.died`. A claim of it that waits is answered with None."""
        granted = self._table.died(holder)
        self._answer(holder, None)
        self._tell(granted)

    def give_up(self, holder: str, turn: int) -> None:
        """See `LeaseTable.give_up`. A claim that waits is answered with None."""
        granted = self._table.give_up(holder, turn)
        if not self._table.knows(holder):
            self._answer(holder, None)
        self._tell(granted)

    def knows(self, holder: str) -> bool:
        """See `LeaseTable.knows`."""
        return self._table.knows(holder)

    def waits(self, holder: str) -> bool:
        """Whether it has claimed, and is not granted yet."""
        return holder in self._waiting

    def stop(self) -> None:
        """The run is over: who waits at priority 0 is told so, and so is who asks later."""
        for holder in self._table.stop():
            self._answer(holder, None)
        self._changes.notify()

    def _tell(self, granted: Iterable[Lease]) -> None:
        for lease in granted:
            self._since[lease.holder] = time.monotonic()
            self._answer(lease.holder, lease.epoch)
        self._changes.notify()

    def _answer(self, holder: str, epoch: int | None) -> None:
        future = self._waiting.pop(holder, None)
        if future is not None and not future.done():
            future.set_result(epoch)
