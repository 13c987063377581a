"""Claims that wait in an actor: answered, told, expired, ended with the run."""

from __future__ import annotations

import asyncio

import pytest

from rl_api.errors import DeadlineExceeded
from rl_trainer.flow.lease_desk import LeaseDesk
from rl_trainer.flow.leases import LEARNERS

FAR = 3600.0


def test_who_holds_is_told_that_others_wait_and_they_come_in_when_it_leaves():
    async def play() -> None:
        desk = LeaseDesk()
        epoch = await desk.claim("sampler 0", ["learner 0"], FAR)
        assert epoch == 1
        look = asyncio.create_task(desk.wanted("sampler 0", epoch, FAR))
        learners = asyncio.create_task(desk.claim(LEARNERS, ["learner 0", "learner 1"], FAR, 1))
        assert await look
        assert not learners.done()
        desk.give_back("sampler 0", epoch)
        assert await learners == 2
        desk.give_back("sampler 0", epoch)  # comes late, and changes nothing
        assert not await desk.wanted(LEARNERS, 2, 0.0)
        assert await desk.wanted("sampler 0", epoch, FAR), "it has the device no more"

    asyncio.run(play())


def test_a_claim_that_is_not_granted_in_time_says_who_has_the_devices():
    async def play() -> None:
        desk = LeaseDesk()
        epoch = await desk.claim("sampler 0", ["learner 0"], FAR)
        assert epoch is not None
        with pytest.raises(
            DeadlineExceeded,
            match=r"^learners: the devices of learner 0, learner 1 were not free within 0 s, held by sampler 0 for 0 s; ",
        ):
            await desk.claim(LEARNERS, ["learner 0", "learner 1"], 0.0, 1)
        assert not await desk.wanted("sampler 0", epoch, 0.0), "nobody waits any more"
        assert await desk.claim("sampler 1", ["learner 1"], FAR) == 2

    asyncio.run(play())


def test_a_dead_holder_and_a_dead_claim_keep_nobody_waiting():
    async def play() -> None:
        desk = LeaseDesk()
        await desk.claim("sampler 0", ["learner 0"], FAR)
        learners = asyncio.create_task(desk.claim(LEARNERS, ["learner 0", "learner 1"], FAR, 1))
        dead = asyncio.create_task(desk.claim("sampler 1", ["learner 1"], FAR))
        await asyncio.sleep(0)
        desk.died("sampler 1")
        assert await dead is None
        desk.died("sampler 0")
        assert await learners == 2

    asyncio.run(play())


def test_at_the_end_of_a_run_samplers_get_nothing_any_more_and_learners_do():
    async def play() -> None:
        desk = LeaseDesk()
        epoch = await desk.claim(LEARNERS, ["learner 0"], FAR, 1)
        assert epoch is not None
        sampler = asyncio.create_task(desk.claim("sampler 0", ["learner 0"], FAR))
        await asyncio.sleep(0)
        desk.stop()
        assert await sampler is None
        desk.give_back(LEARNERS, epoch)
        assert await desk.claim("sampler 0", ["learner 0"], FAR) is None
        assert await desk.claim(LEARNERS, ["learner 0"], FAR, 1) == 2

    asyncio.run(play())
