"""Leader election against a Lease in memory, with times of milliseconds."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, cast

import pytest

from rl_operator.kube.client import Api, ApiError
from rl_operator.runtime.leader import Leader, LeaderLost, Times

FAST = Times(lease=0.3, renew=0.2, retry=0.02)


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

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "there is one")
        manifest["metadata"]["resourceVersion"] = 1
        self.lease = copy.deepcopy(manifest)
        return manifest

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._answer()
        assert self.lease is not None
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "it has changed")
        manifest["metadata"]["resourceVersion"] += 1
        self.lease = copy.deepcopy(manifest)
        self.lease["spec"]["leaseDurationSeconds"] = FAST.lease  # whole seconds are too long for a test
        return manifest

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


def candidate(leases: Leases, identity: str) -> Leader:
    return Leader(cast(Api, leases), "rltrain-system", "operator", identity, FAST)


def test_one_leads_and_the_other_takes_over_when_it_lets_go() -> None:
    async def work() -> None:
        leases = Leases()
        first, second = candidate(leases, "a"), candidate(leases, "b")
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(3 * FAST.lease)
        assert leases.holder == "a"
        assert not waiting.done(), "a lease that is renewed is not taken"
        keeping.cancel()
        await first.release()
        await asyncio.wait_for(waiting, FAST.lease)
        assert leases.holder == "b"
        assert leases.lease is not None
        assert leases.lease["spec"]["leaseTransitions"] >= 2

    asyncio.run(work())


def test_a_lease_that_nobody_renews_is_taken_after_its_time() -> None:
    async def work() -> None:
        leases = Leases()
        await candidate(leases, "dead").acquire()
        assert leases.lease is not None
        leases.lease["spec"]["leaseDurationSeconds"] = FAST.lease
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.wait_for(candidate(leases, "b").acquire(), 5)
        assert loop.time() - started >= FAST.lease
        assert leases.holder == "b"

    asyncio.run(work())


@pytest.mark.parametrize("trouble", ["broken", "hanging"])
def test_a_leader_that_cannot_renew_stops(trouble: str) -> None:
    async def work() -> None:
        leases = Leases()
        leader = candidate(leases, "a")
        await leader.acquire()
        setattr(leases, trouble, True)
        with pytest.raises(LeaderLost, match="could not be renewed"):
            await asyncio.wait_for(leader.keep(), 5)

    asyncio.run(work())


def test_a_lease_that_was_lost_is_not_given_up_again() -> None:
    async def work() -> None:
        leases = Leases()
        first = candidate(leases, "a")
        await first.acquire()
        assert leases.lease is not None
        leases.lease["spec"]["holderIdentity"] = "b"
        await first.release()
        assert leases.holder == "b"

    asyncio.run(work())
