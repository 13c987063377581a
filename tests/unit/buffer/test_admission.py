import heapq
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import scored

from rl_trainer.buffer.admission import (
    Bound,
    first_by_prompt,
    keeps_bound,
    may_start,
    needed_by_version,
    select_batch,
)
from rl_trainer.buffer.groups import BufferConfig, Handed
from rl_trainer.buffer.saved import restore, snapshot
from rl_trainer.buffer.state import BufferState
from rl_trainer.flow.policies import Entry

BOUND = {"step": 0, "max_staleness": 0, "groups_per_step": 4}
BUDGET = {"ready": 0, "running": 0, "version": 0}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"slots_free": 10}, 4),  # the staleness budget is the limit
        ({"slots_free": 3}, 3),  # physical slots are
        ({"slots_free": 10, "capacity": 2}, 2),  # reserved room is
        ({"slots_free": 10, "max_staleness": 2}, 10),
        ({"slots_free": 100, "max_staleness": 2}, 12),
        ({"slots_free": 100, "max_staleness": 2, "version": 3, "step": 3}, 12),
        ({"slots_free": 10, "ready": 1, "running": 2}, 1),
        ({"slots_free": 10, "running": 4}, 0),
        ({"slots_free": 10, "running": 5}, 0),  # never negative
        ({"slots_free": 100, "steps_per_version": 3}, 12),
        ({"slots_free": 100, "steps_per_version": 3, "step": 2, "ready": 1}, 3),
        ({"slots_free": 10, "max_staleness": 4, "ready": 6, "running": 1, "capacity": 8}, 1),
        ({"slots_free": 10, "taken": 3}, 1),  # what is taken of the batch has its places already
    ],
)
def test_may_start(case, expected):
    values = BOUND | BUDGET | case
    bound = Bound(**{name: values.pop(name) for name in Bound.__match_args__ if name in values})
    assert may_start(bound, **values) == expected


def entry(group_id, version, arrival, priority=0.0):
    group = replace(scored(group_id, [1.0], [3], version), version=version)
    return Entry(group_id, group, priority, 1, arrival)


def entries(*versions, priorities=None):
    return [entry(10 + i, version, i, (priorities or {}).get(i, 0.0)) for i, version in enumerate(versions)]


def test_batch_by_completion_order_when_nothing_is_urgent():
    assert select_batch(entries(1, 1, 0), [], Bound(1, 3, 2)) == [10, 11]


def test_batch_by_priority():
    ready = entries(1, 1, 1, priorities={2: 5.0, 1: 5.0})
    assert select_batch(ready, [], Bound(1, 3, 2), order="priority") == [11, 12]


def test_old_groups_go_first_when_this_is_their_last_batch():
    # eta 1: version 0 may be trained at steps 0 and 1; the two old ones arrived last and must go now.
    assert select_batch(entries(1, 1, 0, 0), [], Bound(1, 1, 2)) == [12, 13]


def test_what_each_version_needs_counts_the_older_ones_that_go_already():
    # Now at the latest: one group of version 0, and of the five in all two more; 13 waits a batch longer.
    ready = entries(1, 1, 1, 0, 1)
    assert select_batch(ready, [], Bound(1, 1, 3)) == [13, 10, 11]
    assert select_batch(entries(1, 1, 1, 0), [1], Bound(1, 1, 3)) == [13, 10, 11]


def test_waits_for_a_running_group_that_this_batch_must_hold():
    assert select_batch(entries(1, 1, 1), [0], Bound(1, 1, 2)) is None


def test_does_not_wait_for_a_running_group_that_has_time():
    assert select_batch(entries(1, 1, 1), [0], Bound(1, 2, 2)) == [10, 11]


def test_waits_while_too_few_are_ready():
    assert select_batch(entries(0), [], Bound(0, 4, 2)) is None


def test_on_policy_batches_are_sorted_by_id():
    ready = [entry(7, 3, 0), entry(6, 3, 1)]
    assert select_batch(ready, [], Bound(3, 0, 2)) == [6, 7]


def test_a_broken_invariant_is_noticed():
    with pytest.raises(AssertionError, match="invariant"):
        select_batch(entries(0, 0, 0), [], Bound(0, 0, 2))


def test_needs_are_cumulative():
    needs = needed_by_version([0, 0, 1, 1, 1], Bound(1, 1, 3))
    assert needs == [(0, 2), (1, 2)]  # 2 of version 0 now; of the 5 in all, 3 may go one batch later
    assert needed_by_version([0, 1, 1, 1], Bound(1, 1, 3)) == [(0, 1), (1, 1)]
    assert needed_by_version([1, 1, 1], Bound(1, 1, 3)) == []
    assert keeps_bound([0, 0, 1, 1, 1], Bound(1, 1, 3))
    assert keeps_bound([0, 0, 0], Bound(1, 1, 3))
    assert not keeps_bound([0, 0, 0, 0], Bound(1, 1, 3))


def test_a_part_needs_only_what_the_rest_of_the_batch_cannot_hold():
    # Version 0 can be trained now or never; of the batch of four one place is left beside the part of three.
    ready = entries(1, 1, 1, 0)
    assert select_batch(ready, [0], Bound(1, 1, 4), groups=3) == [13, 10, 11]
    assert select_batch(ready, [0], Bound(1, 1, 4), groups=2) == [10, 11]
    assert select_batch(entries(1, 1, 1), [0, 0], Bound(1, 1, 4), groups=3) is None
    assert select_batch(entries(1, 1), [0], Bound(1, 1, 4, taken=2), groups=1) == [10]
    assert select_batch(entries(1, 1), [0], Bound(1, 1, 4, taken=2)) is None
    assert select_batch(entries(1, 1), [0], Bound(1, 1, 4, taken=3)) is None


def test_on_policy_parts_are_the_first_by_prompt():
    assert first_by_prompt([7, 4, 5], [6], 2) == [4, 5]
    assert first_by_prompt([7, 4, 5], [6], 3) is None
    assert first_by_prompt([4], [], 2) is None


class World:
    """Simulated samplers and a learner around a BufferState; everything that can go wrong does, at random."""

    def __init__(self, config, rng, drop_rate, death_rate, change_rate, late_rate=0.5, part=None, restarts=0):
        self.state = BufferState(config)
        self.restarts = restarts  # to come
        self.part, self.have = (
            part or config.groups_per_step,
            [],
        )  # groups in a part, those taken of the batch
        self.config, self.rng = config, rng
        self.drop_rate, self.death_rate, self.late_rate = drop_rate, death_rate, late_rate
        self.change_rate = change_rate
        self.events = []  # (time, tie, sampler, life, ticket)
        self.ghosts = []  # results of dead samplers that may still arrive
        self.life = dict.fromkeys(range(config.samplers), 0)
        self.there = set(self.life)
        self.time, self.tie = 0.0, 0
        self.trained, self.dropped, self.discarded = [], set(), 0
        for sampler in self.life:
            self.state.register(sampler)

    def dispatch(self):
        for sampler in self.rng.sample(sorted(self.there), len(self.there)):
            for ticket in self.state.acquire(sampler, self.rng.randint(0, 6)):
                assert ticket.begun is None or not self.state.roster.shares_device(sampler)
                self.tie += 1
                end = self.time + min(50.0, self.rng.lognormvariate(0, 1.5))  # long-tailed, but they do end
                heapq.heappush(self.events, (end, self.tie, sampler, self.life[sampler], ticket))

    def finish_one(self):
        self.time, _, sampler, life, ticket = heapq.heappop(self.events)
        if life != self.life[sampler]:
            return
        if self.rng.random() < self.death_rate:
            self.lose(sampler)
            self.state.register(sampler)
        elif self.rng.random() < self.drop_rate:
            if self.state.drop(sampler, ticket.group_id, "failed"):  # else a late result came first
                self.dropped.add(ticket.group_id)
        else:
            self.put(sampler, ticket)

    def hand_over(self):
        """One sampler gives some of what it has begun to others; of some there is a token, of these or newer weights."""
        sampler = self.rng.choice(sorted(self.there))
        life = self.life[sampler]
        mine = [event for event in self.events if event[2] == sampler and event[3] == life]
        chosen = self.rng.sample(mine, self.rng.randint(0, len(mine)))
        self.events = [event for event in self.events if event not in chosen]
        heapq.heapify(self.events)
        tickets = [event[4] for event in chosen]
        handed = [
            Handed(
                ticket.group_id,
                self.rng.choice([None, ticket.version, self.state.version]),
                b"begun",
            )
            for ticket in tickets
        ]
        ids = {ticket.group_id for ticket in tickets}
        held = {key for key, (holder, _) in self.state.running.items() if holder == sampler}
        assert set(self.state.hand_over(sampler, handed)) == ids & held

    def lose(self, sampler):
        life = self.life[sampler]
        self.ghosts += [event for event in self.events if event[2] == sampler and event[3] == life]
        self.life[sampler] += 1
        self.state.release(sampler)

    def come_or_go(self):
        """One sampler more, with a new rank or one that another had, or one less; sometimes none is left for a while."""
        if self.there and self.rng.random() < 0.5:
            gone = self.rng.choice(sorted(self.there))
            self.there.remove(gone)
            self.lose(gone)
        else:
            come = next(rank for rank in range(len(self.there) + 1) if rank not in self.there)
            self.there.add(come)
            self.life.setdefault(come, 0)
            self.state.register(come)

    def put(self, sampler, ticket):
        group = scored(ticket.group_id, [1.0], [3], ticket.version, priority=self.rng.random())
        result = self.state.put(sampler, group)
        self.dropped |= set(result.dropped)
        if result.reason == "rejected":
            self.dropped.add(ticket.group_id)

    def learners_come(self):
        """To the devices that some share, or leave them; what samplers there have got since is for others."""
        self.state.learning = not self.state.learning
        if self.state.learning:
            self.hand_over_all()
            self.state.recall()

    def hand_over_all(self):
        for sampler in sorted(self.there):
            if sampler < self.config.shared_samplers:
                mine = [key for key, (holder, _) in self.state.running.items() if holder == sampler]
                self.state.hand_over(
                    sampler, [Handed(key, self.state.running[key][1], b"begun") for key in mine]
                )
                self.events = [event for event in self.events if event[2] != sampler]
                heapq.heapify(self.events)

    def restart(self):
        """The run goes on from a checkpoint of this moment; all samplers are new, and nobody remembers the old ones."""
        self.events, self.ghosts, self.have = [], [], []
        saved, payloads = snapshot(self.state)
        self.state = restore(self.config, json.loads(json.dumps(saved)), payloads)
        for sampler in self.there:
            self.state.register(sampler)
        self.restarts -= 1

    def train(self):
        wanted = min(len(self.have) + self.part, self.config.groups_per_step)
        before = len(self.state.pending) + len(self.state.running), self.room()
        batch = self.state.take(groups=wanted)
        if batch is None:
            return False
        assert before == (len(self.state.pending) + len(self.state.running), self.room()), (
            "a part admits none"
        )
        assert [group.group_id for group in batch[: len(self.have)]] == self.have, "what is taken stays first"
        self.have = [group.group_id for group in batch]
        assert len(batch) == wanted
        if wanted < self.config.groups_per_step:
            return True
        self.have = []
        trained_at = self.state.committed_steps // self.config.steps_per_version
        assert len(batch) == self.config.groups_per_step
        for group in batch:
            assert trained_at - group.version <= self.config.max_staleness
        ids = [group.group_id for group in batch]
        assert [group.group_id for group in self.state.take()] == ids  # the same until commit
        self.trained += ids
        steps = self.state.commit()
        if steps % self.config.steps_per_version == 0:
            self.state.publish(steps // self.config.steps_per_version)
        return True

    def room(self):
        """How many groups the staleness bound lets start, whatever the buffer's capacity."""
        state = self.state
        counts = {"ready": len(state.ready), "running": len(state.running) + len(state.pending)}
        return may_start(state._bound(), version=state.version, slots_free=10**6, **counts)


@pytest.mark.parametrize("on_full", ["dropOldest", "reject"])
@pytest.mark.parametrize("seed", range(4))
def test_strictly_on_policy_nothing_is_dropped_for_room_and_parts_come_to_an_end(seed, on_full):
    config = BufferConfig(
        groups_per_step=5, capacity=5, max_staleness=0, on_full=on_full, samplers=2, steps_per_version=3
    )
    world = World(config, random.Random(seed), 0.2, 0.0, 0.0, part=3)
    idle = 0
    while world.state.committed_steps < 9:
        world.dispatch()
        idle = 0 if world.train() else idle + 1
        if world.events:
            world.finish_one()
        assert idle < 500, "stuck: " + world.state.waiting_for()
    assert set(world.state.drops) == {"failed"}


@pytest.mark.no_cover  # long, and other tests run these lines
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    eta=st.integers(0, 4),
    per_step=st.integers(1, 5),
    per_version=st.integers(1, 3),
    samplers=st.integers(1, 4),
    slack=st.integers(0, 6),
    order=st.sampled_from(["fifo", "priority"]),
    on_full=st.sampled_from(["block", "dropOldest", "reject"]),
    drop_rate=st.sampled_from([0.0, 0.2]),
    death_rate=st.sampled_from([0.0, 0.1]),
    change_rate=st.sampled_from([0.0, 0.1]),
    part=st.sampled_from([None, None, 1, 2, 3]),
    restarts=st.integers(0, 2),
    shared=st.sampled_from([0, 0, 1, 2]),
    hand_over_at=st.sampled_from([None, 0.5, 1.0]),
)
def test_never_too_old_never_stuck_nothing_lost(
    seed,
    eta,
    per_step,
    per_version,
    samplers,
    slack,
    order,
    on_full,
    drop_rate,
    death_rate,
    change_rate,
    part,
    restarts,
    shared,
    hand_over_at,
):
    config = BufferConfig(
        groups_per_step=per_step,
        capacity=per_step + slack,
        max_staleness=eta,
        order=order,
        on_full=on_full,
        samplers=samplers,
        steps_per_version=per_version,
        shared_samplers=shared,
        hand_over_at=hand_over_at,
        all_move=True,
    )
    world = World(
        config, random.Random(seed), drop_rate, death_rate, change_rate, part=part, restarts=restarts
    )
    idle = 0
    while world.state.committed_steps < 25:
        world.dispatch()
        if world.rng.random() < world.change_rate:
            world.come_or_go()
        if shared and world.there and world.rng.random() < 0.1:
            world.rng.choice([world.hand_over, world.learners_come])()
        if world.restarts and world.rng.random() < 0.02:
            world.restart()
        if world.ghosts and world.rng.random() < world.late_rate:
            _, _, sampler, _, ticket = world.ghosts.pop()
            # Another sampler's rank: the dead one's own rank now holds tickets of a new life.
            if world.state.running.get(ticket.group_id, (None, 0))[0] != sampler:
                try_late(world, sampler, ticket)
        if world.rng.random() < 0.5:
            idle = 0 if world.train() else idle + 1
        elif world.events:
            world.finish_one()
        assert idle < 5000, "stuck: " + world.state.waiting_for()
    state = world.state
    assert state.max_staleness_seen <= eta
    # Every prompt up to the cursor is in exactly one place.
    places = [
        *world.trained,
        *world.dropped,
        *state.running,
        *state.pending,
        *(entry.key for entry in state.ready),
        *(group.group_id for group in state.leased),
    ]
    assert sorted(places) == list(range(state.cursor))
    if on_full == "block":
        assert set(state.drops) <= {"failed"}
    assert set(state.drops) <= {"failed", "buffer_full", "rejected"}  # never for age


def try_late(world, sampler, ticket):
    state = world.state
    if ticket.group_id in state.running or ticket.group_id in state.reissue:
        result = state.put(sampler, scored(ticket.group_id, [1.0], [3], ticket.version))
        world.dropped |= set(result.dropped)
        if result.reason == "rejected":
            world.dropped.add(ticket.group_id)
