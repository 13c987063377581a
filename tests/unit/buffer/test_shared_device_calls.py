"""Turns on devices as the buffer's actor answers calls of samplers and learners."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from buffers import group

from rl_api.errors import DeadlineExceeded, RLTrainError
from rl_trainer.buffer.actor import BufferActor
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.flow.leases import LEARNERS

FAR = 3600.0


async def an_actor(samplers: int) -> BufferActor:
    """Half of a batch of two groups is there. The first sampler shares its device; its help is not needed any more."""
    config = BufferConfig(2, samplers=samplers, max_staleness=1, shared_samplers=1, hand_over_at=0.5)
    actor = BufferActor(config)
    for sampler in range(samplers):
        await actor.register(sampler)
    await actor.publish(0, None)
    (ticket,) = (await actor.acquire(0, 1, 0.0)).tickets
    await actor.put(0, [group(ticket.group_id)])
    return actor


def test_a_sampler_hears_that_its_help_is_not_needed_where_it_asks_and_others_are_there():
    async def play() -> None:
        for samplers, said in ((2, "done"), (1, None)):
            actor = await an_actor(samplers)
            epoch = await actor.claim("sampler 0", ["learner 0"], FAR)
            assert epoch is not None
            assert await actor.wanted("sampler 0", epoch, 0.0, 0) == said, "the only one goes on"
            assert await actor.wanted("sampler 0", epoch, 0.0, None) is None, "it has been told"
            learners = asyncio.create_task(actor.claim(LEARNERS, ["learner 0"], FAR, 1))
            assert await actor.wanted("sampler 0", epoch, FAR, None) == "wanted"
            await actor.give_up(LEARNERS)
            assert await learners is None

    asyncio.run(play())


def test_a_sampler_that_leaves_with_its_pod_keeps_its_device_till_it_has_left():
    async def play() -> None:
        actor = await an_actor(2)
        epoch = await actor.claim("sampler 0", ["learner 0"], FAR)
        assert epoch is not None
        learners = asyncio.create_task(actor.claim(LEARNERS, ["learner 0"], FAR, 1))
        await asyncio.sleep(0)
        await actor.release(0, lives=True)
        await asyncio.sleep(0)
        assert not learners.done(), "it computes there still"
        assert await actor.waits(LEARNERS)
        await actor.give_back("sampler 0", epoch)
        assert await learners == epoch + 1
        assert not await actor.waits(LEARNERS)

    asyncio.run(play())


@pytest.mark.parametrize("ends", ["withdrawn", "late", "granted"])
def test_when_learners_wait_no_more_samplers_get_groups_again(ends: str):
    async def play() -> None:
        actor = await an_actor(1)
        if ends != "granted":
            await actor.claim("sampler 0", ["learner 0"], FAR)
        seconds = 0.0 if ends == "late" else FAR
        claim: Any = asyncio.create_task(actor.claim(LEARNERS, ["learner 0"], seconds, 1))
        await asyncio.sleep(0)
        if ends == "late":
            with pytest.raises(DeadlineExceeded, match="held by sampler 0"):
                await claim
        else:
            assert (await actor.acquire(0, 1, 0.0)).tickets == []
            await actor.give_up(LEARNERS)
            await claim
        assert (await actor.acquire(0, 1, 0.0)).tickets != []
        assert not await actor.waits(LEARNERS)

    asyncio.run(play())


def test_what_learners_said_of_a_turn_that_is_over_changes_nothing_in_the_next_one():
    """Ray carries calls of an asynchronous actor out in any order."""

    async def play() -> None:
        actor = await an_actor(1)
        first = await actor.claim(LEARNERS, ["learner 0"], FAR, 1, 1)
        assert first is not None
        epoch = await actor.claim(LEARNERS, ["learner 0"], FAR, 1, 2)
        assert epoch == first + 1, "though what gives the first one back is still to come"
        sampler = asyncio.create_task(actor.claim("sampler 0", ["learner 0"], FAR))
        await asyncio.sleep(0)
        await actor.give_back(LEARNERS, first)
        await actor.give_up(LEARNERS, 1)
        with pytest.raises(RLTrainError, match=r"^lease: claim 1 of learners comes when it is over$"):
            await actor.claim(LEARNERS, ["learner 0"], FAR, 1, 1)
        await asyncio.sleep(0)
        assert not sampler.done(), "learners have the device"
        assert (await actor.acquire(0, 1, 0.0)).tickets == [], "and samplers that share it get no groups"
        await actor.give_back(LEARNERS, epoch)
        assert await sampler == epoch + 1
        assert (await actor.acquire(0, 1, 0.0)).tickets != []

    asyncio.run(play())


def test_a_claim_that_was_given_up_before_it_came_is_not_granted():
    async def play() -> None:
        actor = await an_actor(1)
        await actor.give_up(LEARNERS, 1)
        with pytest.raises(RLTrainError, match="comes when it is over"):
            await actor.claim(LEARNERS, ["learner 0"], FAR, 1, 1)
        assert (await actor.acquire(0, 1, 0.0)).tickets != []
        assert await actor.claim("sampler 0", ["learner 0"], FAR) == 1

    asyncio.run(play())


def test_a_claim_that_waits_ends_with_a_later_one_of_its_name():
    async def play() -> None:
        actor = await an_actor(1)
        epoch = await actor.claim("sampler 0", ["learner 0"], FAR)
        assert epoch is not None
        first = asyncio.create_task(actor.claim(LEARNERS, ["learner 0"], FAR, 1, 1))
        await asyncio.sleep(0)
        second = asyncio.create_task(actor.claim(LEARNERS, ["learner 0"], FAR, 1, 2))
        assert await first is None
        assert await actor.waits(LEARNERS)
        await actor.give_back("sampler 0", epoch)
        assert await second == epoch + 1

    asyncio.run(play())
