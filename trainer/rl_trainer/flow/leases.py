"""Who may use which devices now: leases of several devices at once. Pure; `lease_desk.py` carries it.

A holder claims all that it needs in one claim, and has no second claim while it has one or holds devices: so nobody who
holds waits for more, and there is no deadlock. Claims are granted by priority, then in the order of their arrival; one
that waits keeps its devices from later ones, so that a large claim is not passed by small ones again and again.
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


def device_of(rank: int) -> str:
    """The device on which a learner process computes."""
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
        self._epoch = self._number = 0

    @property
    def leases(self) -> list[Lease]:
        """In the order in which they were granted."""
        return list(self._leases.values())

    @property
    def claims(self) -> list[Claim]:
        """Those that wait, in the order in which they would be granted."""
        return sorted(self._claims.values(), key=lambda claim: (-claim.priority, claim.number))

    def claim(self, holder: str, devices: Iterable[str], priority: int = 0) -> list[Lease]:
        """Asks for all of `devices` together.

        Raises:
            RLTrainError: the holder has devices, or asks for some already: it would wait while it holds.
        """
        if holder in self._leases or holder in self._claims:
            has = "holds" if holder in self._leases else "waits for"
            theirs = (self._leases.get(holder) or self._claims[holder]).devices
            raise RLTrainError(
                f"lease: {holder} claims {_names(devices)}, but {has} {_names(theirs)} already; it gives them back first"
            )
        self._number += 1
        self._claims[holder] = Claim(holder, frozenset(devices), priority, self._number)
        return self._grant()

    def withdraw(self, holder: str) -> list[Lease]:
        """The holder waits no more."""
        self._claims.pop(holder, None)
        return self._grant()

    def release(self, holder: str, epoch: int) -> list[Lease]:
        """Gives a lease back; of one that is over, as its epoch says, nothing changes."""
        if self.holds(holder, epoch):
            del self._leases[holder]
        return self._grant()

    def died(self, holder: str) -> list[Lease]:
        """The process behind `holder` is gone for certain: what it held is free, and it waits no more."""
        self._leases.pop(holder, None)
        return self.withdraw(holder)

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
