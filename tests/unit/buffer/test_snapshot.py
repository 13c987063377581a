import json

import pytest
from buffers import batch_ids, flat, group, ids, make, run_step

from rl_api.errors import RLTrainError
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.saved import restore, snapshot
from rl_trainer.buffer.state import BufferState
from rl_trainer.observe.timeline import Span
from rl_trainer.trajectory import Group


def test_a_restored_buffer_knows_its_refills():
    state = make(max_refills=1, max_staleness=1)
    state.acquire(0, 9)
    state.put(0, flat(0))
    saved, payloads = json.loads(json.dumps(snapshot(state)[0])), []
    new = restore(state.config, saved, payloads)
    new.register(0)
    first, *_ = new.acquire(0, 9)
    assert first.group_id == 1
    assert new.put(0, flat(1)).accepted


def test_snapshot_and_restore_repeat_nothing_and_skip_nothing():
    config = BufferConfig(groups_per_step=2, capacity=8, max_staleness=2, samplers=2, order="priority")
    state = BufferState(config)
    state.register(0)
    state.register(1)
    state.acquire(0, 3)
    state.acquire(1, 3)  # 0..5 are out
    state.put(0, group(0, payload=b"zero"))
    state.put(1, group(4, payload=b"four"))
    state.take()
    state.commit()
    state.publish(1)
    state.put(
        0,
        group(
            1, priority=2.0, spans=[Span("sampler 0", "generate", 1.0, 2.5, {"version": 1})], payload=b"one"
        ),
    )
    state.put(1, group(3, priority=7.0, payload=b"three"))
    state.drop(1, 5, "failed")
    state.take()  # 3 and 1 under lease: their step is not done
    saved, payloads = json.loads(json.dumps(snapshot(state)[0])), snapshot(state)[1]
    assert payloads == [b"three", b"one"]

    new = restore(config, saved, payloads)
    assert (new.version, new.step, new.cursor) == (1, 1, 6)
    new.register(0)
    assert ids(new.acquire(0, 9)) == [2, 6, 7, 8]
    assert batch_ids(new) == [3, 1]
    assert new.take()[1].spans == [Span("sampler 0", "generate", 1.0, 2.5, {"version": 1})]
    assert new.drops == {"failed": 1}


def test_a_checkpoint_of_before_is_still_read():
    """Format 1 kept under `extra` what a group has fields for."""
    extra = {
        "total_lengths": [9, 8],
        "truncated": [False, True],
        "exact": 1,
        "spans": [["sampler 0", "score", 1, 2, {}]],
    }
    meta = {"group_id": 3, "rewards": [1.0, 0.0], "lengths": [5, 4], "min_version": 1, "max_version": 2}
    ready = [{"version": 1, "meta": {**meta, "tokens": 17, "priority": 0.0, "extra": extra}}]
    state = {"format": 1, "version": 2, "steps": 2, "cursor": 6, "in_flight": [4, 5], "ready": ready}
    state |= {"counts": {"put": 4}, "drops": {}, "max_staleness_seen": 1}
    new = restore(BufferConfig(groups_per_step=1, max_staleness=2), state, [b"three"])
    assert (new.drops, new.refills, new.max_staleness_seen) == ({}, 0, 1)
    (taken,) = new.take()
    spans = [Span("sampler 0", "score", 1, 2, {})]
    assert taken == Group(3, [1.0, 0.0], [5, 4], [9, 8], [False, True], 1, 0.0, spans, 1, b"three")
    with pytest.raises(RLTrainError, match="buffer has format 4, allowed are 1 to 3"):
        restore(new.config, {**state, "format": 4}, [b"three"])


def test_on_policy_snapshot_samples_unfinished_steps_again():
    state = make()
    run_step(state)
    state.publish(1)
    state.acquire(0, 9)
    state.put(0, group(3, version=1, payload=b"three"))
    saved, payloads = snapshot(state)
    assert payloads == []
    new = restore(state.config, saved, payloads)
    assert new.step == new.version
    new.register(0)
    tickets = new.acquire(0, 9)
    assert ids(tickets) == [2, 3]
    assert all(ticket.reissued for ticket in tickets)


def test_a_batch_that_is_half_taken_counts_as_ready():
    state = make(max_staleness=1, groups_per_step=3)
    state.acquire(0, 9)
    for group_id in (2, 0, 1):
        state.put(0, group(group_id, payload=b"%d" % group_id))
    assert [one.group_id for one in state.take(groups=2)] == [2, 0]
    saved, payloads = json.loads(json.dumps(snapshot(state)[0])), snapshot(state)[1]
    assert payloads == [b"2", b"0", b"1"]
    new = restore(state.config, saved, payloads)
    assert new.step == 0
    assert batch_ids(new) == [2, 0, 1]


def test_restore_with_a_smaller_staleness_is_refused():
    state = make(max_staleness=3)
    state.acquire(0, 8)
    for group_id in range(8):
        state.put(0, group(group_id))
    saved, payloads = snapshot(state)
    smaller = BufferConfig(groups_per_step=2, capacity=8, max_staleness=1)
    with pytest.raises(RLTrainError, match=r"too old for buffer\.maxStaleness 1"):
        restore(smaller, saved, payloads)


def test_restore_of_something_else_is_refused():
    state = make()
    with pytest.raises(RLTrainError, match="format None"):
        restore(state.config, {}, [])
    with pytest.raises(RLTrainError, match="lists 0 ready groups but holds 1 payloads"):
        restore(state.config, snapshot(state)[0], [b""])
