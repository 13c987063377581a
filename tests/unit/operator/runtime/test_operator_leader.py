"""Leader election against a Lease in memory, in virtual time."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, cast

import pytest
from async_work import run_async

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.runtime.leader import Leader, LeaderLost, Times

TIMES = Times()


class Leases:
    """One Lease, with the API server's check of versions."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.broken = False
        self.hanging = False

    async def _answer(self) -> None:
        if self.hanging:
            await asyncio.sleep(3600)
        if self.broken:
            raise ApiError(0, "NoAnswer", "the API server does not answer")

    async def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        await self._answer()
        return copy.deepcopy(self.lease)

    async def apply(self, manifest: dict[str, Any], *, new: bool) -> dict[str, Any]:
        await self._answer()
        manifest = copy.deepcopy(manifest)
        version = 0 if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if version != (0 if new else manifest["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", "it has changed")
        manifest["metadata"]["resourceVersion"] = version + 1
        self.lease = manifest
        return manifest

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


def candidate(leases: Leases, identity: str) -> Leader:
    clock = asyncio.get_running_loop().time
    return Leader(cast(Api, leases), "rltrain-system", "operator", identity, TIMES, clock)


def test_one_leads_and_the_other_takes_over_when_it_lets_go() -> None:
    async def work() -> None:
        leases = Leases()
        first, second = candidate(leases, "a"), candidate(leases, "b")
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(3 * TIMES.lease)
        assert leases.holder == "a"
        assert not waiting.done(), "a lease that is renewed is not taken"
        keeping.cancel()
        await first.release()
        await asyncio.wait_for(waiting, TIMES.lease)
        assert leases.holder == "b"
        assert leases.lease is not None
        assert leases.lease["spec"]["leaseTransitions"] >= 2

    run_async(work, 100.0, virtual=True)


def test_a_lease_that_nobody_renews_is_taken_after_its_time() -> None:
    async def work() -> None:
        leases = Leases()
        await candidate(leases, "dead").acquire()
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.wait_for(candidate(leases, "b").acquire(), 2 * TIMES.lease)
        assert loop.time() - started >= TIMES.lease
        assert leases.holder == "b"

    run_async(work, 100.0, virtual=True)


@pytest.mark.parametrize("trouble", ["broken", "hanging"])
def test_a_leader_that_cannot_renew_stops(trouble: str) -> None:
    async def work() -> None:
        leases = Leases()
        leader = candidate(leases, "a")
        await leader.acquire()
        setattr(leases, trouble, True)
        with pytest.raises(LeaderLost, match="could not be renewed"):
            await asyncio.wait_for(leader.keep(), TIMES.lease)

    run_async(work, 100.0, virtual=True)


def test_a_lease_that_was_lost_is_not_given_up_again() -> None:
    async def work() -> None:
        leases = Leases()
        first = candidate(leases, "a")
        await first.acquire()
        assert leases.lease is not None
        leases.lease["spec"]["holderIdentity"] = "b"
        await first.release()
        assert leases.holder == "b"

    run_async(work, 100.0, virtual=True)


def test_what_is_left_of_a_lease_counts_from_before_it_was_asked_for() -> None:
    async def work() -> None:
        leases, now = Leases(), 1000.0
        leader = Leader(cast(Api, leases), "rltrain-system", "operator", "a", Times(), lambda: now)
        assert leader.left <= 0, "it was never held"
        await leader.acquire()
        assert leader.left == 15.0
        now += 14.0
        assert leader.left == 1.0
        now += 1.5
        assert leader.left <= 0, "somebody else may hold it"
        await leader.release()
        assert leader.left <= 0

    run_async(work, 100.0, virtual=True)
