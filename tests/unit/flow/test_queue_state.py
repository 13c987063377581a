import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_trainer.flow.queue_state import Chunk, QueueState


def queue(capacity=10, **options):
    return QueueState(capacity, **options)


def offer(state, name, count, priority=0.0, producer="p", by_reference=False):
    chunk = Chunk([name] if by_reference else name, count, producer, adopted=not by_reference)
    return state.offer(chunk, count, priority, 0.0)


def lease(state, items, consumer="c", **options):
    return [(p.chunk.payload, p.start, p.stop) for _, p in state.lease(consumer, items, 0.0, **options)]


def test_items_are_leased_in_order_and_in_parts():
    state = queue()
    assert offer(state, b"a", 4) == 4
    assert offer(state, b"b", 3) == 3
    assert lease(state, 3) == [(b"a", 0, 3)]
    assert lease(state, 3, "other") == [(b"a", 3, 4), (b"b", 0, 2)]
    assert state.size == 1
    assert lease(state, 9) == [(b"b", 2, 3)]
    assert lease(state, 9) == []


def test_a_policy_of_the_users_sees_what_waits_and_says_what_leaves():
    seen = []

    def policy(waiting):
        """The producer with the fewest items first."""
        seen.append([(one.producer, one.items, one.priority, one.arrival) for one in waiting])
        return min(range(len(waiting)), key=lambda index: waiting[index].items)

    state = queue(order=policy)
    offer(state, b"a", 4, producer="slow")
    offer(state, b"b", 2, priority=0.5, producer="quick")
    assert lease(state, 1) == [(b"b", 0, 1)]
    assert seen == [[("slow", 4, 0.0, 0), ("quick", 2, 0.5, 1)]]
    assert lease(state, 2) == [(b"b", 1, 2), (b"a", 0, 1)]
    assert state.reclaim("c", 0, 0.0) == 3
    assert lease(state, 9, "other")[0] == (b"a", 0, 1), "what comes back is chosen from again"


def test_no_more_bytes_by_value_than_fit_an_answer():
    state = queue()
    offer(state, b"x" * 60, 2)
    offer(state, b"y" * 60, 2)
    offer(state, "big", 2, by_reference=True)
    assert lease(state, 9, most_bytes=50) == [(b"x" * 60, 0, 2)]
    assert lease(state, 9, most_bytes=90) == [(b"y" * 60, 0, 2), (["big"], 0, 2)]


def test_block():
    state = queue(capacity=5)
    assert offer(state, b"a", 3) == 3
    assert offer(state, b"b", 3) is None
    lease(state, 1)
    assert offer(state, b"b", 3) == 3


def test_drop_oldest_drops_items_not_chunks():
    state = queue(capacity=5, on_full="dropOldest")
    offer(state, b"a", 3)
    offer(state, b"b", 2)
    assert offer(state, b"c", 2) == 2
    assert state.drops == {"buffer_full": 2}
    assert lease(state, 9) == [(b"a", 2, 3), (b"b", 0, 2), (b"c", 0, 2)]


def test_drop_oldest_with_more_than_the_capacity_keeps_the_newest():
    state = queue(capacity=5, on_full="dropOldest")
    offer(state, b"a", 3)
    assert offer(state, b"b", 8) == 5
    assert state.drops == {"buffer_full": 6}
    assert lease(state, 9) == [(b"b", 3, 8)]


def test_reject_refuses_items_not_chunks():
    state = queue(capacity=5, on_full="reject")
    offer(state, b"a", 3)
    assert offer(state, b"b", 4) == 2
    assert offer(state, b"c", 1) == 0
    assert state.drops == {"rejected": 3}
    assert lease(state, 9) == [(b"a", 0, 3), (b"b", 0, 2)]


def test_priority():
    state = queue(order="priority")
    offer(state, b"low", 2, priority=1.0)
    offer(state, b"high", 2, priority=5.0)
    assert lease(state, 3) == [(b"high", 0, 2), (b"low", 0, 1)]
    offer(state, b"top", 1, priority=9.0)
    state.reclaim("c", 1, 0.0)
    assert lease(state, 9) == [(b"top", 0, 1), (b"high", 1, 2), (b"low", 0, 1), (b"low", 1, 2)]


def test_a_dead_consumers_items_return_to_their_place():
    state = queue()
    offer(state, b"a", 4)
    offer(state, b"b", 2)
    lease(state, 2, "one")
    lease(state, 3, "two")  # 2 of a, 1 of b
    assert state.reclaim("one", 1, 0.0) == 1
    assert state.reclaim("two", 0, 0.0) == 3
    assert lease(state, 9) == [(b"a", 1, 2), (b"a", 2, 4), (b"b", 0, 1), (b"b", 1, 2)]
    assert state.reclaim("nobody", 0, 0.0) == 0


def test_delivered_leases_are_forgotten_one_by_one():
    state = queue()
    offer(state, b"a", 2, by_reference=True)
    offer(state, b"b", 2, by_reference=True)
    (first, _), (second, part) = state.lease("c", 9, 0.0)
    state.delivered("c", 1, 0.0)
    assert state.leased_part("c", first) is not None
    state.delivered("c", 2, 0.0)
    assert state.leased_part("c", first) is None
    state.delivered("c", 1, 0.0)  # an older report that came late
    assert state.leased_part("c", second) is part
    assert state.leased_part("d", second) is None
    assert state.metrics(1.0, "x")["leased"] == 2


def test_finished_only_when_no_item_can_come_back():
    state = queue()
    offer(state, b"a", 2)
    state.closed = True
    assert not state.finished
    lease(state, 2)
    assert not state.finished
    state.delivered("c", 2, 0.0)
    assert state.finished


def test_chunks_that_would_be_lost_with_their_producer():
    state = queue()
    offer(state, "a", 2, by_reference=True)
    offer(state, b"small", 1)
    offer(state, "b", 2, by_reference=True)
    offer(state, "c", 2, by_reference=True, producer="q")
    state.lease("c", 1, 0.0)  # a is half leased, half queued: still one chunk
    state.lease("c", 2, 0.0)
    assert [chunk.payload for chunk in state.unadopted("p")] == [["b"], ["a"]]
    assert [chunk.payload for chunk in state.unadopted("q")] == [["c"]]


def test_metrics():
    state = queue(capacity=4, alarm_seconds=5.0)
    offer(state, b"a", 4)
    metrics = state.metrics(10.0, "x")
    assert (metrics["size"], metrics["fill"], metrics["put"], metrics["delivered"]) == (4, 1.0, 4, 0)
    assert metrics["alarms"][0].startswith("the channel x has been full for 10 s")


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(1, 12),
    order=st.sampled_from(["fifo", "priority"]),
    on_full=st.sampled_from(["block", "dropOldest", "reject"]),
)
def test_every_item_is_delivered_once_or_counted_whoever_dies(seed, capacity, order, on_full):
    rng = random.Random(seed)
    state = queue(capacity, order=order, on_full=on_full)
    held = {}  # consumer -> items leased, in order; those before `delivered` are handed out
    delivered, put, born = [], 0, 0
    for _ in range(200):
        action = rng.random()
        if action < 0.35:
            count = rng.randint(1, 6)
            if offer(state, [("item", put + i) for i in range(count)], count, rng.randint(0, 2)) is not None:
                put += count
        elif action < 0.6 or not held:
            if len(held) < 3:
                born += 1
                held[f"c{born}"] = [[], 0]
            name = rng.choice(sorted(held))
            for _, part in state.lease(name, rng.randint(1, 8), 0.0):
                held[name][0] += part.chunk.payload[part.start : part.stop]
        elif action < 0.9:
            items = held[name := rng.choice(sorted(held))]
            if items[1] < len(items[0]):
                delivered.append(items[0][items[1]])
                items[1] += 1
            if rng.random() < 0.5:
                state.delivered(name, items[1], 0.0)
        else:
            name = rng.choice(sorted(held))
            state.reclaim(name, held.pop(name)[1], 0.0)
    for name in sorted(held):
        state.reclaim(name, held[name][1], 0.0)
    rest = [
        item
        for _, part in state.lease("last", 10**6, 0.0)
        for item in part.chunk.payload[part.start : part.stop]
    ]
    everything = delivered + rest
    assert len(everything) == len(set(everything))
    assert len(everything) + sum(state.drops.values()) == put
    if order == "fifo":
        assert rest == sorted(rest)


def test_a_chunk_above_the_capacity_passes_through_an_empty_queue():
    state = queue(capacity=2)
    assert offer(state, b"a", 5) == 5
    assert offer(state, b"b", 1) is None
    lease(state, 5)
    assert offer(state, b"b", 1) == 1


@pytest.mark.parametrize("total", [0, 2, 5])
def test_reclaim_after_some_were_delivered(total):
    state = queue()
    offer(state, b"a", 3)
    offer(state, b"b", 2)
    lease(state, 5)
    assert state.reclaim("c", total, 0.0) == 5 - total
    assert state.size == 5 - total
