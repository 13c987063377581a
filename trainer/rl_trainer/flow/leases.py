"""Who may use which devices now: leases of several devices at once. Pure; `lease_desk.py` carries it.

A holder claims all that it needs in one claim, and has no second claim while it has one or holds devices: so nobody who
holds waits for more, and there is no deadlock. Claims are granted by priority, then in the order of their arrival; one
that waits keeps its devices from later ones, so that a large claim is not passed by small ones again and again.

Messages of one process may arrive in any order, those of a dead one after its death is known, but before any of its
successor's. So who may stop waiting numbers its claims, and a process's first claim ends what one before it of its name had.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rl_api.errors import RLTrainError

Wish = Literal["wanted", "done"]
"""Why a holder may leave its devices: somebody waits for one, or what it does there is not needed any more."""

LEARNERS = "learners"
"""All learner processes together are one holder."""


def device_name(rank: int) -> str:
    """What leases call the device on which the learner process of this rank computes: as that process is called."""
    return f"learner {rank}"


@dataclass(frozen=True)
class Claim:
    """A claim that waits. `number`: claims are numbered as they come; higher `priority` goes first."""

    holder: str
    devices: frozenset[str]
    priority: int
    number: int


@dataclass(frozen=True)
class Lease:
    """The right of `holder` to use `devices`. `epoch`: larger than that of every lease before it, of whatever devices."""

    holder: str
    devices: frozenset[str]
    epoch: int


class LeaseTable:
    """All leases and claims. Methods that may let somebody in return the leases that they granted."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._claims: dict[str, Claim] = {}
        self._turns: dict[str, int] = {}  # by holder, of the last claim that it has numbered
        self._epoch = self._number = 0
        self.stopped = False

    @property
    def leases(self) -> list[Lease]:
        """In the order in which they were granted."""
        return list(self._leases.values())

    @property
    def claims(self) -> list[Claim]:
        """Those that wait, in the order in which they would be granted."""
        return sorted(self._claims.values(), key=lambda claim: (-claim.priority, claim.number))

    def claim(
        self, holder: str, devices: Iterable[str], priority: int = 0, *, turn: int = 0, anew: bool = False
    ) -> list[Lease]:
        """Asks for all of `devices` together.

        Args:
            holder: who asks.
            devices: for what.
            priority: higher goes first; at 0 nothing is granted once the run is over, see `stop`.
            turn: number of the claim, larger than that of each before it, where the holder numbers them: what it had
                before is over.
            anew: it is the first claim of its process: what one before it of the same name had is over.

        Raises:
            RLTrainError: the holder has devices, or asks for some already: it would wait while it holds. Or the claim was
                given up before it arrived.
        """
        if turn and turn <= self._turns.get(holder, 0):
            raise RLTrainError(f"lease: claim {turn} of {holder} comes when it is over")
        if turn or anew:
            self._turns[holder] = turn
            self._leases.pop(holder, None)
            self._claims.pop(holder, None)
        if holder in self._leases or holder in self._claims:
            has = "holds" if holder in self._leases else "waits for"
            theirs = (self._leases.get(holder) or self._claims[holder]).devices
            raise RLTrainError(
                f"lease: {holder} claims {_names(devices)}, but {has} {_names(theirs)} already; it gives them back first"
            )
        if self.stopped and not priority:
            return self._grant()
        self._number += 1
        self._claims[holder] = Claim(holder, frozenset(devices), priority, self._number)
        return self._grant()

    def withdraw(self, holder: str) -> list[Lease]:
        """The holder waits no more."""
        self._claims.pop(holder, None)
        return self._grant()

    def give_up(self, holder: str, turn: int) -> list[Lease]:
        """Nobody waits for the answer to the claim of this number any more, which may be still to come: if it is granted, it
        was not taken. Where a later one has come, nothing changes."""
        if turn < self._turns.get(holder, 0):
            return []
        self._turns[holder] = turn
        return self.died(holder)

    def stop(self) -> list[str]:
        """The run is over: whose claims of priority 0 are so, too. Nobody is let in: they were the last in line."""
        self.stopped = True
        ended = [claim.holder for claim in self.claims if not claim.priority]
        for holder in ended:
            del self._claims[holder]
        return ended

    def release(self, holder: str, epoch: int) -> list[Lease]:
        """Gives a lease back; of one that is over, as its epoch says, nothing changes."""
        if self.holds(holder, epoch):
            del self._leases[holder]
        return self._grant()

    def died(self, holder: str) -> list[Lease]:
        """The process behind `holder` is gone for certain: what it held is free, and it waits no more."""
        self._leases.pop(holder, None)
        return self.withdraw(holder)

    def knows(self, holder: str) -> bool:
        """Whether it has devices, or waits for some."""
        return holder in self._leases or holder in self._claims

    def holds(self, holder: str, epoch: int) -> bool:
        """Whether the lease of this epoch is still the holder's."""
        lease = self._leases.get(holder)
        return lease is not None and lease.epoch == epoch

    def wanted(self, holder: str) -> bool:
        """Whether somebody waits for a device of the holder's."""
        lease = self._leases.get(holder)
        return lease is not None and any(claim.devices & lease.devices for claim in self._claims.values())

    def holders(self, devices: Iterable[str]) -> list[str]:
        """Who has any of `devices`."""
        wanted = frozenset(devices)
        return [lease.holder for lease in self._leases.values() if lease.devices & wanted]

    def _grant(self) -> list[Lease]:
        """Grants every claim that nobody before it in line, and no holder, keeps devices from."""
        taken = {device for lease in self._leases.values() for device in lease.devices}
        granted = []
        for claim in self.claims:
            if not claim.devices & taken:
                del self._claims[claim.holder]
                self._epoch += 1
                lease = self._leases[claim.holder] = Lease(claim.holder, claim.devices, self._epoch)
                granted.append(lease)
            taken |= claim.devices
        return granted


def _names(devices: Iterable[str]) -> str:
    return ", ".join(sorted(devices))
