"""The lease table, explored: every order of claims, releases, withdrawals and deaths of three workers on two devices."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from rl_api.errors import RLTrainError
from rl_trainer.flow.leases import Lease, LeaseTable

DEVICES = ("a", "b")
CLAIMS = tuple(frozenset(chosen) for chosen in ("a", "b", "ab"))
# The first is a parent, as learners are.
PRIORITIES = {"learners": 1, "sampler 0": 0, "sampler 1": 0}
WORKERS = tuple(PRIORITIES)
# Names by which worlds look the same.
SAME_WORKERS = (WORKERS, (WORKERS[0], WORKERS[2], WORKERS[1]))
SAME_DEVICES = (DEVICES, DEVICES[::-1])


@dataclass(frozen=True)
class Process:
    """What a worker's process itself believes; `dead`: it is gone, and the table has not been told yet.

    `former`: epoch of its last lease that is over, with which a late message may still come.
    """

    state: Literal["idle", "waits", "holds"] = "idle"
    devices: frozenset[str] = frozenset()
    epoch: int = 0
    dead: bool = False
    former: int = 0


@dataclass
class World:
    """The table, and beside it what is true."""

    table: LeaseTable
    processes: dict[str, Process] = field(default_factory=lambda: dict.fromkeys(WORKERS, Process()))
    last_epoch: int = 0

    def key(self) -> tuple[object, ...]:
        """Equal for worlds that differ in nothing but the numbers of epochs and which device, or sampler, is which."""
        return min(self._named(workers, devices) for workers in SAME_WORKERS for devices in SAME_DEVICES)

    def _named(self, workers: Sequence[str], devices: Sequence[str]) -> tuple[object, ...]:
        def bits(held: frozenset[str]) -> tuple[bool, ...]:
            return tuple(device in held for device in devices)

        line = tuple(workers.index(claim.holder) for claim in self.table.claims)
        held = sorted((workers.index(lease.holder), bits(lease.devices)) for lease in self.table.leases)
        true = [self.processes[worker] for worker in workers]
        return line, tuple(held), tuple((p.state, bits(p.devices), p.dead, p.former > 0) for p in true)

    def copy(self) -> World:
        """Another one, in which other things may happen."""
        table = copy.copy(self.table)
        table._leases, table._claims = dict(table._leases), dict(table._claims)
        return World(table, dict(self.processes), self.last_epoch)

    def after(self, worker: str, what: str) -> World | None:
        """The world after `worker` did `what`; None: it cannot."""
        then = self.copy()
        process, table = self.processes[worker], then.table
        granted: Iterable[Lease] = ()
        if what == "dies" and not process.dead:
            then.processes[worker] = replace(process, dead=True)
        elif what == "is found dead" and process.dead:
            then.processes[worker] = Process(former=process.epoch or process.former)
            granted = table.died(worker)
        elif what == "says something late" and process.former:
            granted = table.release(worker, process.former)
        elif process.dead:
            return None
        elif what.startswith("claims ") and process.state == "idle":
            devices = frozenset(what.removeprefix("claims "))
            then.processes[worker] = replace(process, state="waits", devices=devices)
            granted = table.claim(worker, devices, PRIORITIES[worker])
        elif what == "withdraws" and process.state == "waits":
            then.processes[worker] = Process(former=process.former)
            granted = table.withdraw(worker)
        elif what == "gives back" and process.state == "holds":
            then.processes[worker] = Process(former=process.epoch)
            granted = table.release(worker, process.epoch)
        else:
            return None
        for lease in granted:
            then.hear(lease)
        return then

    def hear(self, lease: Lease) -> None:
        """A grant reaches its holder, or nobody where the process is gone."""
        assert lease.epoch > self.last_epoch, "an epoch comes again"
        self.last_epoch = lease.epoch
        process = self.processes[lease.holder]
        assert process.state == "waits", f"{lease.holder} did not ask"
        assert process.devices == lease.devices, "not what was asked for"
        self.processes[lease.holder] = replace(process, state="holds", epoch=lease.epoch)

    def next(self) -> Iterator[tuple[str, World]]:
        """Every world that may follow, with what happened."""
        acts = [*(f"claims {''.join(sorted(claim))}" for claim in CLAIMS), "withdraws", "gives back"]
        for worker in WORKERS:
            for act in (*acts, "dies", "is found dead", "says something late"):
                if (then := self.after(worker, act)) is not None:
                    yield f"{worker} {act}", then

    def check(self) -> None:
        """What must hold in every world."""
        table, leases = self.table, self.table.leases
        for device in DEVICES:
            assert sum(device in lease.devices for lease in leases) <= 1, f"two hold {device}"
        believed = {name: p for name, p in self.processes.items() if p.state == "holds"}
        for name, process in believed.items():
            assert process.dead or table.holds(name, process.epoch), f"{name} computes without a lease"
        for lease in leases:
            assert lease.holder in believed, f"nobody knows of the lease of {lease.holder}: it is lost"
        waiting = {name for name, p in self.processes.items() if p.state == "waits"}
        assert {claim.holder for claim in table.claims} == waiting, "a claim is lost"
        taken = {device for lease in leases for device in lease.devices}
        for claim in table.claims:
            assert claim.devices & taken, f"{claim.holder} waits, and nobody keeps its devices from it"
            for lease in leases:
                assert not claim.devices & lease.devices or table.wanted(lease.holder), "no holder is told"
            taken |= claim.devices
        order = [PRIORITIES[claim.holder] for claim in table.claims]
        assert order == sorted(order, reverse=True), "children before their parents"

    def check_that_all_come_in(self) -> None:
        """From here on nobody claims, who holds gives back, and the dead are found: every claim is granted."""
        world, waiting = self, {name for name, p in self.processes.items() if p.state == "waits"}
        for _ in range(2 * len(WORKERS)):
            for name, process in world.processes.items():
                act = "is found dead" if process.dead else "gives back"
                world = world.after(name, act) or world
                waiting -= {name for name, p in world.processes.items() if p.state != "waits"}
        assert not waiting, f"{waiting} wait for ever"
        assert not world.table.leases, "devices stay taken"


def explore(table: LeaseTable) -> int:
    """Looks at every world that can be reached, once; how many these are.

    Raises AssertionError with the shortest way to the first one in which something does not hold.
    """
    first = World(table)
    seen = {first.key()}
    line: deque[tuple[World, tuple[str, ...]]] = deque([(first, ())])
    while line:
        world, way = line.popleft()
        try:
            world.check()
            world.check_that_all_come_in()
            following = list(world.next())
        except AssertionError as error:
            raise AssertionError(f"{error}; after: {', '.join(way)}") from error
        for what, then in following:
            if (key := then.key()) not in seen:
                seen.add(key)
                line.append((then, (*way, what)))
    return len(seen)


def test_no_two_holders_no_deadlock_and_no_lost_lease_in_any_order_of_events():
    found = explore(LeaseTable())
    assert found > 1000


class Unfenced(LeaseTable):
    """Takes any epoch for the present one."""

    def release(self, holder: str, epoch: int) -> list[Lease]:
        lease = self._leases.get(holder)
        return super().release(holder, lease.epoch if lease else epoch)


class ForgetsTheDead(LeaseTable):
    """Keeps the devices of who died while it held them."""

    def died(self, holder: str) -> list[Lease]:
        return self.withdraw(holder)


class KeepsDeadClaims(LeaseTable):
    """Takes no claim of a dead process back."""

    def died(self, holder: str) -> list[Lease]:
        self._leases.pop(holder, None)
        return self._grant()


class TellsNobody(LeaseTable):
    """Does not look who waits when a claim before it is taken back."""

    def withdraw(self, holder: str) -> list[Lease]:
        self._claims.pop(holder, None)
        return []


class OneDeviceIsEnough(LeaseTable):
    """Grants where any of the devices is free."""

    def _grant(self) -> list[Lease]:
        taken = {device for lease in self._leases.values() for device in lease.devices}
        granted = []
        for claim in self.claims:
            if claim.devices - taken:
                del self._claims[claim.holder]
                self._epoch += 1
                lease = self._leases[claim.holder] = Lease(claim.holder, claim.devices, self._epoch)
                granted.append(lease)
                taken |= claim.devices
        return granted


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Unfenced, "computes without a lease"),
        (ForgetsTheDead, "devices stay taken"),
        (KeepsDeadClaims, "did not ask"),
        (TellsNobody, "wait for ever"),
        (OneDeviceIsEnough, "two hold"),
    ],
)
def test_the_exploration_finds_what_is_wrong_with_a_table(broken: type[LeaseTable], said: str):
    with pytest.raises(AssertionError, match=said):
        explore(broken())


def test_learners_come_before_samplers_and_a_large_claim_is_not_passed_by_small_ones():
    table = LeaseTable()
    (held,) = table.claim("sampler 0", "a")
    assert table.claim("learners", "ab", priority=1) == []
    assert table.claim("sampler 1", "b") == [], "b is kept for who waits for both"
    assert [lease.holder for lease in table.release("sampler 0", held.epoch)] == ["learners"]


def test_who_holds_or_waits_cannot_claim_again():
    table = LeaseTable()
    table.claim("sampler 0", "a")
    table.claim("sampler 1", "a")
    with pytest.raises(RLTrainError, match="lease: sampler 0 claims b, but holds a already"):
        table.claim("sampler 0", "b")
    with pytest.raises(RLTrainError, match="lease: sampler 1 claims a, but waits for a already"):
        table.claim("sampler 1", "a")
