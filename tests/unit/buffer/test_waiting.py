"""Who waits in the buffer: an event answers those whom it concerns, at once, and nobody waits for what is there."""

import asyncio
import copy
import random

import pytest
from buffers import flat, group, ids, make

from rl_trainer.buffer.actor import BufferActor
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.waiting import Call, WaitingCalls


class Future:
    """What a call is answered through, in the hands of a test."""

    def __init__(self, done=False):
        self._done = done

    def done(self):
        return self._done


def line(*calls):
    waiting = WaitingCalls()
    for call in calls:
        waiting.join(call)
    return waiting


def call(sampler, groups=1, known_version=0, done=False):
    return Call(sampler, groups, known_version, Future(done))


def served(found):
    return [(one.sampler, ids(tickets)) for one, tickets in found]


def test_room_for_one_is_given_to_the_first_in_line_and_to_nobody_else():
    state = make(samplers=3, max_staleness=1)
    state.acquire(0, 4)
    watch, second, third = call(0, groups=0), call(1), call(2)
    waiting = line(watch, second, third)
    assert waiting.hand_out(state) == []
    state.drop(0, 2, "reward_error")
    assert served(waiting.hand_out(state)) == [(1, [4])]
    assert len(waiting) == 2
    assert not waiting.leave(second)
    assert waiting.leave(third)
    assert waiting.leave_all() == [watch]


@pytest.mark.parametrize("cancelled", [False, True])
def test_who_has_left_takes_nothing_with_it(cancelled):
    state = make(samplers=3, max_staleness=1)
    state.acquire(0, 4)
    first, second = call(1, done=cancelled), call(2)
    waiting = line(first, second)
    if not cancelled:  # by its deadline; a cancelled call is still in line when room is made
        waiting.leave(first)
    state.drop(0, 0, "reward_error")
    assert served(waiting.hand_out(state)) == [(2, [4])]


def test_on_policy_the_sampler_whose_share_it_is_gets_it():
    state = make(samplers=3, groups_per_step=3)
    for sampler in range(3):
        state.acquire(sampler, 3)
    waiting = line(call(0), call(1), call(2))
    state.drop(0, 0, "reward_error")
    state.drop(1, 1, "reward_error")
    assert served(waiting.hand_out(state)) == [(0, [3]), (1, [4])]
    assert state.release(2) == [2]
    waiting.leave_all(2)
    assert waiting.hand_out(state) == []  # its home among the living does not wait
    waiting.join(call(0, groups=5))
    assert state.assigned() == [0]
    assert served(waiting.hand_out(state)) == [(0, [2])]


def test_newer_weights_are_for_all_who_have_older_ones():
    state = make(samplers=3, max_staleness=1)
    state.acquire(0, 4)
    for group_id in range(2):
        state.put(0, group(group_id))
    state.take()
    state.commit()
    state.publish(1)
    waiting = line(call(0, groups=0), call(1, known_version=1), call(2))
    assert served(waiting.hand_out_newer(state)) == [(0, []), (2, [4]), (1, [5])]
    assert len(waiting) == 0


def test_calls_of_one_sampler_leave_together():
    waiting = line(one := call(0), call(1), two := call(0, groups=0))
    assert waiting.leave_all(0) == [one, two]
    assert [left.sampler for left in waiting.leave_all()] == [1]


async def turns():
    """Whoever can go on has done so."""
    for _ in range(4):
        await asyncio.sleep(0)


def nobody_waits_in_vain(actor, takers):
    state = actor._state
    for one in actor._waiting._all:
        assert copy.deepcopy(state).acquire(one.sampler, one.groups) == []
        assert one.known_version == state.version
    if any(not taker.done() for taker in takers):
        assert copy.deepcopy(state).take() is None


# Samplers ask more often than anything else happens.
EVENTS = (
    ["acquire"] * 6
    + ["put"] * 4
    + ["flat", "drop", "release", "register", "take", "take", "finish", "cancel"]
)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("on_full", ["block", "dropOldest", "reject"])
@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_after_any_event_nobody_waits_for_what_is_there(max_staleness, on_full, seed):
    rng = random.Random(seed)
    events = [(rng.choice(EVENTS), rng.randrange(8)) for _ in range(120)]

    async def play():
        actor = BufferActor(
            BufferConfig(
                2, capacity=3, max_staleness=max_staleness, on_full=on_full, samplers=3, max_refills=1
            )
        )
        await actor.publish(0, None)
        for sampler in range(3):
            await actor.register(sampler)
        calls, takers = [], []
        for event, number in events:
            state, sampler = actor._state, number % 3
            holders = sorted(state.running.items())
            group_id, (holder, version) = holders[number % len(holders)] if holders else (None, (None, None))
            if event == "acquire" and sampler in state.roster.registered:
                groups = number // 3
                calls.append(asyncio.create_task(actor.acquire(sampler, groups, 60.0, state.version)))
            elif event in ("put", "flat") and holders:
                await actor.put(holder, [(group if event == "put" else flat)(group_id, version)])
            elif event == "drop" and holders:
                await actor.drop(holder, group_id, "reward_error")
            elif event == "release":
                await actor.release(sampler)
            elif event == "register":
                await actor.register(sampler)
            elif event == "take":
                takers.append(asyncio.create_task(actor.take(60.0)))
            elif event == "finish" and state.leased:
                await actor.finish_step(state.committed_steps, state.version + 1, None)
            elif event == "cancel" and calls:
                calls.pop(number % len(calls)).cancel()
            await turns()
            nobody_waits_in_vain(actor, takers)
        await actor.stop()
        for taker in takers:
            taker.cancel()
        await asyncio.wait_for(asyncio.gather(*calls, *takers, return_exceptions=True), 10.0)

    asyncio.run(play())


def test_a_deadline_is_an_empty_answer_and_the_next_in_line_gets_the_work():
    async def play():
        actor = BufferActor(BufferConfig(1, max_staleness=0, samplers=1))
        await actor.publish(0, "weights")
        await actor.register(0)
        assert ids((await actor.acquire(0, 1, 60.0)).tickets) == [0]
        late = asyncio.create_task(actor.acquire(0, 1, 0.01, 0))
        patient = asyncio.create_task(actor.acquire(0, 1, 60.0, 0))
        empty = await late
        assert (empty.tickets, empty.weights, empty.stop) == ([], None, False)
        await actor.drop(0, 0, "reward_error")
        assert ids((await patient).tickets) == [1]

    asyncio.run(play())
