"""The lease table, explored with its messages under way: every order in which claims, what takes them back, answers, deaths
and the end of the run can arrive, of learners and two samplers on two devices.

Messages of one process arrive in any order, as calls of Ray's asynchronous actors do. Those of a dead one may be lost, or
arrive after its death is known, but before its successor's first. Each sampler claims the device that it shares: samplers
that want the same one are in `test_leases.py`, where what is said is heard at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import pytest

from rl_api.errors import RLTrainError
from rl_trainer.flow.leases import LEARNERS, Lease, LeaseTable

SAMPLERS = ("sampler 0", "sampler 1")
WORKERS = (LEARNERS, *SAMPLERS)
CLAIMS = {LEARNERS: "ab", SAMPLERS[0]: "a", SAMPLERS[1]: "b"}
PRIORITIES = {LEARNERS: 1, SAMPLERS[0]: 0, SAMPLERS[1]: 0}
# Names by which worlds look the same.
SAME = (WORKERS, (LEARNERS, *SAMPLERS[::-1]))
# Messages, and answers.
MOST_UNDER_WAY = 2

Event = tuple[Callable[..., None], str, tuple[Any, ...]]
"""A method of a world's, of whom, and what more it is told."""


@dataclass(frozen=True)
class Message:
    """To the table. `dead`: its sender is. `number`: of a claim of the learners'."""

    what: Literal["claim", "give up", "give back"]
    number: int = 0
    epoch: int = 0
    first: bool = False
    dead: bool = False


@dataclass(frozen=True)
class Process:
    """What a worker's process believes. It `returns` devices until that is answered, and where it `closes` it gives back at
    once what it may still be granted. `fresh`: it has claimed nothing yet; `dead`: there is none, and nobody knows."""

    state: Literal["idle", "waits", "holds", "returns", "closes", "over"] = "idle"
    number: int = 0
    epoch: int = 0
    fresh: bool = True
    dead: bool = False


@dataclass
class World:
    """The table, what is under way to it and from it, and what is true.

    Attributes:
        mail: to the table, by sender.
        answers: to claims, by who asked: number of the claim, and the lease's epoch or None.
        asked: whose claim the table has, or had last, of each name: its number, and whether its process is there.
    """

    table: LeaseTable
    processes: dict[str, Process] = field(default_factory=lambda: dict.fromkeys(WORKERS, Process()))
    mail: dict[str, frozenset[Message]] = field(default_factory=lambda: dict.fromkeys(WORKERS, frozenset()))
    answers: dict[str, frozenset[tuple[int, int | None]]] = field(
        default_factory=lambda: dict.fromkeys(WORKERS, frozenset())
    )
    asked: dict[str, tuple[int, bool]] = field(default_factory=lambda: dict.fromkeys(WORKERS, (0, False)))
    ended: bool = False

    def copy(self) -> World:
        """Another one, in which other things may happen."""
        table = object.__new__(type(self.table))
        table.__dict__.update(self.table.__dict__)
        for name in ("_leases", "_claims", "_turns"):
            table.__dict__[name] = table.__dict__[name].copy()
        true = (self.processes.copy(), self.mail.copy(), self.answers.copy(), self.asked.copy())
        return World(table, *true, self.ended)

    # -- what may happen -------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """All that can."""
        for worker, process in self.processes.items():
            if process.dead:
                yield World.bury, worker, ()
            else:
                yield from self._acts(worker, process)
                for answer in self.answers[worker]:
                    yield World.hear, worker, (answer,)
            for message in self.mail[worker]:
                yield World.arrive, worker, (message,)
        for claim in self.table.claims:
            yield World.expire, claim.holder, ()
        if not self.ended:
            yield World.end, "everybody", ()

    def _acts(self, worker: str, process: Process) -> Iterator[Event]:
        under_way = sum(len(self.mail[name]) + len(self.answers[name]) for name in WORKERS)
        if process.state == "idle" and under_way < MOST_UNDER_WAY:
            yield World.claim, worker, ()
        if process.state == "waits":
            yield World.give_up, worker, ()
        if process.state == "holds":
            yield World.give_back, worker, ()
        if worker != LEARNERS:  # the buffer does not outlive the driver
            yield World.die, worker, ()

    def set(self, worker: str, *changes: tuple[str, object]) -> None:
        """Something else is true of a process."""
        self.processes[worker] = replace(self.processes[worker], **dict(changes))  # type: ignore[arg-type]

    def say(self, worker: str, message: Message) -> None:
        """It is on its way."""
        self.mail[worker] |= {message}

    def claim(self, worker: str) -> None:
        """As `Turn.taken`, `device_for_loading` and `SharedDevice`."""
        process = self.processes[worker]
        number = process.number + 1 if worker == LEARNERS else 0
        self.say(worker, Message("claim", number, first=process.fresh and worker != LEARNERS))
        self.set(worker, ("state", "waits"), ("number", number), ("fresh", False))

    def give_up(self, worker: str) -> None:
        """As `Turn.taken` and `SharedDevice.close`."""
        if worker == LEARNERS:
            self.say(worker, Message("give up", self.processes[worker].number))
        self.set(worker, ("state", "idle" if worker == LEARNERS else "closes"))

    def give_back(self, worker: str) -> None:
        """As `Turn.taken` after an error, and `SharedDevice`."""
        self.say(worker, Message("give back", epoch=self.processes[worker].epoch))
        self.set(worker, ("state", "idle" if worker == LEARNERS else "returns"))

    def die(self, worker: str) -> None:
        """What it has said is under way still."""
        self.processes[worker], self.answers[worker] = Process(dead=True), frozenset()
        self.mail[worker] = frozenset(replace(message, dead=True) for message in self.mail[worker])
        self.asked[worker] = (0, False)

    def bury(self, worker: str) -> None:
        """The table is told of a death; there is a successor."""
        self.processes[worker] = Process()
        self._grant(self.table.died(worker))

    def arrive(self, worker: str, message: Message) -> None:
        """As `BufferActor`."""
        self.mail[worker] -= {message}
        if message.what == "give up":
            self._grant(self.table.give_up(worker, message.number))
        elif message.what == "give back":
            self._grant(self.table.release(worker, message.epoch))
            process = self.processes[worker]
            if process.state == "returns" and process.epoch == message.epoch and not process.dead:
                self.set(worker, ("state", "idle"))
        else:
            self._arrive_claim(worker, message)

    def _arrive_claim(self, worker: str, message: Message) -> None:
        if message.first and not message.dead:
            self.mail[worker] = frozenset(one for one in self.mail[worker] if not one.dead)
        before = self.asked[worker]
        self.asked[worker] = (message.number, not message.dead)
        devices, priority = CLAIMS[worker], PRIORITIES[worker]
        try:
            granted = self.table.claim(worker, devices, priority, turn=message.number, anew=message.first)
        except RLTrainError:
            assert not self._awaits(worker, message.number) or message.dead, f"{worker} is refused"
            self.asked[worker] = before
            return
        self._grant(granted)
        if not self.table.knows(worker):
            self._answer(worker, None)

    def _awaits(self, worker: str, number: int) -> bool:
        """Whether the process waits for the answer to its claim of this number."""
        process = self.processes[worker]
        return not process.dead and process.state in ("waits", "closes") and process.number == number

    def _grant(self, granted: Iterable[Lease]) -> None:
        for lease in granted:
            assert not self.ended or PRIORITIES[lease.holder], f"{lease.holder} gets devices after the end"
            self._answer(lease.holder, lease.epoch)

    def _answer(self, worker: str, epoch: int | None) -> None:
        number, there = self.asked[worker]
        if there:
            self.answers[worker] |= {(number, epoch)}

    def hear(self, worker: str, answer: tuple[int, int | None]) -> None:
        """A process is answered, whether it waits or not."""
        self.answers[worker] -= {answer}
        number, epoch = answer
        process = self.processes[worker]
        if not self._awaits(worker, number):
            return
        if epoch is None and worker == LEARNERS:
            self.give_up(worker)
        elif epoch is None:
            self.set(worker, ("state", "over"))
        elif process.state == "closes":
            self.say(worker, Message("give back", epoch=epoch))
            self.set(worker, ("state", "over"))
        else:
            self.set(worker, ("state", "holds"), ("epoch", epoch))

    def expire(self, worker: str) -> None:
        """As `LeaseDesk`."""
        self._answer(worker, None)
        self._grant(self.table.withdraw(worker))

    def end(self, _: str) -> None:
        """As `LeaseDesk.stop`."""
        self.ended = True
        for worker in self.table.stop():
            self._answer(worker, None)

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """In every world."""
        table = self.table
        for one, other in combinations(table.leases, 2):
            assert not one.devices & other.devices, f"two hold {one.devices & other.devices}"
        computing = [name for name, p in self.processes.items() if p.state == "holds" and not p.dead]
        for name in computing:
            assert table.holds(name, self.processes[name].epoch), f"{name} computes without a lease"
        for lease in table.leases:
            assert self._is_ended(lease.holder, lease.epoch), f"nobody ends the lease of {lease.holder}"
        taken = {device for lease in table.leases for device in lease.devices}
        for claim in table.claims:
            assert self._is_ended(claim.holder, None), f"nobody waits for the claim of {claim.holder}"
            assert not self.ended or claim.priority, f"{claim.holder} waits after the end"
            assert claim.devices & taken, f"{claim.holder} waits, and nobody keeps its devices from it"
            taken |= claim.devices
        for name in WORKERS:
            assert self._is_answered(name), f"{name} waits, and nobody answers"

    def _is_ended(self, holder: str, epoch: int | None) -> bool:
        """Whether somebody will end what the table has of this name: a lease, or, without `epoch`, a claim."""
        process, (number, there) = self.processes[holder], self.asked[holder]
        if not there:
            comes = any(one.first and not one.dead for one in self.mail[holder])
            return process.fresh or comes  # at the latest its successor's claim
        if any(
            (one.what == "give up" and one.number == number)
            or (one.what == "give back" and one.epoch == epoch)
            for one in self.mail[holder]
        ):
            return True
        if self._awaits(holder, number):
            return epoch is None or (number, epoch) in self.answers[holder]
        return process.state == "holds" and process.epoch == epoch

    def _is_answered(self, worker: str) -> bool:
        process, table = self.processes[worker], self.table
        if process.dead or process.state not in ("waits", "closes"):
            return True
        says = any(
            one.what == "claim" and one.number == process.number and not one.dead for one in self.mail[worker]
        )
        waits = self.asked[worker] == (process.number, True) and any(c.holder == worker for c in table.claims)
        return says or waits or any(number == process.number for number, _ in self.answers[worker])

    def check_that_all_come_in(self) -> None:
        """From here on nobody claims but successors, once; all else that can happen does: no device stays taken."""
        world = self.copy()
        for _ in range(8):
            for worker in WORKERS if world.table._leases or world.table._claims else ():
                world._settle(worker)
        assert not world.table.claims, f"{world.table.claims[0].holder} waits for ever"
        assert not world.table.leases, "devices stay taken"

    def _settle(self, worker: str) -> None:
        while self.mail[worker]:
            self.arrive(worker, next(iter(self.mail[worker])))
        while self.answers[worker] and not self.processes[worker].dead:
            self.hear(worker, next(iter(self.answers[worker])))
        process = self.processes[worker]
        if process.dead:
            self.bury(worker)
        elif process.state == "holds":
            self.give_back(worker)
        elif process.state == "idle" and process.fresh and self.table.knows(worker):
            self.claim(worker)

    # -- worlds that are the same ----------------------------------------------------------------------------------

    def key(self) -> object:
        """Equal for worlds that differ in nothing but numbers, and which sampler is which."""
        true = {name: self._told(name) for name in WORKERS}
        line = [claim.holder for claim in self.table.claims]
        named = (
            (*(true[name] for name in workers), *(workers.index(name) for name in line)) for workers in SAME
        )
        return frozenset(named), self.ended

    def _told(self, name: str) -> object:
        p, mail, answers, asked = (one[name] for one in (self.processes, self.mail, self.answers, self.asked))
        last = self.table._turns.get(name, 0)
        lease = self.table._leases.get(name)
        epoch = -1 if lease is None else lease.epoch
        numbers = {0}
        if name == LEARNERS:  # others do not number their claims
            numbers = {p.number, asked[0], last, *(m.number for m in mail), *(n for n, _ in answers)}
        rank = sorted(numbers).index
        return (
            (p.state, rank(p.number), p.state in ("holds", "returns") and p.epoch == epoch, p.fresh, p.dead),
            mail and frozenset([(m.what, rank(m.number), m.epoch == epoch, m.first, m.dead) for m in mail]),
            answers and frozenset([(rank(n), found is None, found == epoch) for n, found in answers]),
            self.table.knows(name) and (rank(asked[0]), asked[1]),
            (rank(last), lease is None),
        )


def explore(table: LeaseTable) -> int:
    """Looks at every world that can be reached, once; how many these are.

    Raises AssertionError with the shortest way to the first one in which something does not hold.
    """
    first = World(table)
    seen = {first.key()}
    line: deque[tuple[World, tuple[Any, ...]]] = deque([(first, ())])
    while line:
        world, way = line.popleft()
        try:
            world.check()
            world.check_that_all_come_in()
        except AssertionError as error:
            raise AssertionError(f"{error}; after: {told(way)}") from error
        for event in world.events():
            happen, worker, more = event
            then = world.copy()
            try:
                happen(then, worker, *more)
            except AssertionError as error:
                raise AssertionError(f"{error}; after: {told((way, event))}") from error
            if (key := then.key()) not in seen:
                seen.add(key)
                line.append((then, (way, event)))
    return len(seen)


def told(way: tuple[Any, ...]) -> str:
    """What has happened, the first of it first."""
    found: list[str] = []
    while way:
        way, (happen, worker, more) = way
        found.append(f"{worker} {happen.__name__} {' '.join(map(str, more))}".strip())
    return "; ".join(found[::-1])


def test_nothing_is_lost_and_no_two_compute_in_whatever_order_messages_arrive():
    assert explore(LeaseTable()) > 10_000


class IgnoresSuccessors(LeaseTable):
    """Takes a process's first claim for one more of the process before it, which has died since it claimed."""

    def claim(self, holder: str, devices: Iterable[str], priority: int = 0, **more: Any) -> list[Lease]:
        return super().claim(holder, devices, priority, **(more | {"anew": False}))


class GivesUpTheLast(LeaseTable):
    """Takes back the last claim, whichever was given up."""

    def give_up(self, holder: str, turn: int) -> list[Lease]:
        return super().give_up(holder, max(turn, self._turns.get(holder, 0)))


class GivesUpWhatWaits(LeaseTable):
    """Takes back no claim that was just granted."""

    def give_up(self, holder: str, turn: int) -> list[Lease]:
        if holder not in self._leases:
            return super().give_up(holder, turn)
        self._turns[holder] = max(turn, self._turns.get(holder, 0))
        return []


class TakesLateClaims(LeaseTable):
    """Grants a claim that was given up before it came."""

    def claim(self, holder: str, devices: Iterable[str], priority: int = 0, **more: Any) -> list[Lease]:
        self._turns.pop(holder, None)
        return super().claim(holder, devices, priority, **more)


class WaitsForOneself(LeaseTable):
    """A claim does not end what its holder had given back, where that has not arrived."""

    def claim(self, holder: str, devices: Iterable[str], priority: int = 0, **more: Any) -> list[Lease]:
        if more["turn"] and holder in self._leases:
            raise RLTrainError(f"{holder} holds devices already")
        return super().claim(holder, devices, priority, **more)


class EndsNoClaims(LeaseTable):
    """Leaves those waiting who get nothing after the end."""

    def stop(self) -> list[str]:
        self.stopped = True
        return []


class ForgetsTheEnd(LeaseTable):
    """Grants what is claimed after it."""

    def stop(self) -> list[str]:
        ended, self.stopped = super().stop(), False
        return ended


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (IgnoresSuccessors, "sampler 0 is refused"),
        (GivesUpTheLast, "learners computes without a lease|learners waits, and nobody answers"),
        (GivesUpWhatWaits, "devices stay taken"),
        (TakesLateClaims, "nobody ends the lease of learners|nobody waits for the claim of learners"),
        (WaitsForOneself, "learners is refused"),
        (EndsNoClaims, "waits after the end"),
        (ForgetsTheEnd, "gets devices after the end"),
    ],
)
def test_the_exploration_finds_what_is_wrong_with_a_table(broken: type[LeaseTable], said: str):
    with pytest.raises(AssertionError, match=said):
        explore(broken())
