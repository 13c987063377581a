import json

import pytest
from buffers import batch_ids, flat, group, ids, make, run_step

from rl_api.errors import RLTrainError
from rl_api.roles import BufferSpec
from rl_trainer.buffer.groups import BufferConfig, PutResult


def test_put_is_idempotent():
    state = make()
    state.acquire(0, 2)
    assert state.put(0, group(0, payload=b"a")).accepted
    assert state.put(0, group(0, payload=b"b")).reason == "duplicate"
    assert len(state.ready) == 1


def test_of_two_samplers_with_the_same_group_the_first_wins():
    state = make(samplers=2, max_staleness=2)
    state.acquire(0, 1)
    state.release(0)
    state.acquire(1, 1)
    assert state.put(0, group(0, payload=b"dead one's")).accepted
    assert state.put(1, group(0, payload=b"second")).reason == "duplicate"
    assert state.take() is None
    assert [entry.value.payload for entry in state.ready] == [b"dead one's"]


def test_late_result_is_taken_while_its_group_waits_for_redispatch():
    state = make(samplers=2, max_staleness=2)
    state.acquire(0, 1)
    state.release(0)
    assert state.put(0, group(0)).accepted
    assert state.put(0, group(0)) == PutResult(False, "duplicate")
    assert ids(state.acquire(1, 1)) == [1]


def test_late_result_that_could_not_be_trained_in_time_is_refused_and_nothing_is_lost():
    state = make(samplers=2, max_staleness=0, groups_per_step=1)
    state.acquire(0, 1)
    state.release(0)
    state.acquire(1, 1)
    state.put(1, group(0))
    state.take()
    state.commit()
    state.publish(1)
    state.acquire(1, 1)
    state.release(1)
    state.register(0)
    assert ids(state.acquire(0, 1)) == [1]
    assert state.put(1, group(1, version=0)).reason == "late"
    assert state.put(0, group(1, version=1)).accepted


def test_tokens_older_than_the_ticket_are_an_error():
    state = make()
    run_step(state)
    state.publish(1)
    state.acquire(0, 1)
    with pytest.raises(RLTrainError, match="weight version 0, older than version 1 of its ticket"):
        state.put(0, group(2, version=0))


@pytest.mark.parametrize("group_id", [7, 0, -1])
def test_group_that_was_never_issued(group_id):
    with pytest.raises(RLTrainError, match="never issued"):
        make().put(0, group(group_id))


def test_dropping_returns_the_budget_and_counts_the_reason():
    state = make()
    assert ids(state.acquire(0, 9)) == [0, 1]
    assert state.drop(0, 0, "reward_error")
    assert not state.drop(0, 0, "reward_error")
    assert ids(state.acquire(0, 9)) == [2]
    assert state.drops == {"reward_error": 1}


def test_a_group_without_variance_is_replaced_by_a_new_one():
    state = make(max_refills=4)
    assert ids(state.acquire(0, 9)) == [0, 1]
    assert state.put(0, flat(0)) == PutResult(False, "zero_variance")
    assert state.put(0, group(1)).accepted
    assert state.take() is None
    assert ids(state.acquire(0, 9)) == [2]
    state.put(0, group(2))
    assert batch_ids(state) == [1, 2]
    assert state.drops == {"zero_variance": 1}
    assert state.put(0, flat(0)) == PutResult(False, "duplicate")


def test_refills_are_bounded_per_batch_and_then_groups_are_kept_as_they_are():
    state = make(max_refills=1)
    state.acquire(0, 9)
    assert [state.put(0, flat(group)).accepted for group in (0, 1)] == [False, True]
    assert ids(state.acquire(0, 9)) == [2]
    assert state.put(0, flat(2)).accepted
    assert batch_ids(state) == [1, 2]
    state.commit()
    state.publish(1)
    state.acquire(0, 9)
    assert [state.put(0, flat(group, 1)).accepted for group in (3, 4)] == [False, True]
    assert state.drops == {"zero_variance": 2}


def test_as_many_groups_are_refilled_as_may_be():
    state = make(max_refills=2, max_staleness=1)
    state.acquire(0, 9)
    assert [state.put(0, flat(group)).accepted for group in (0, 1, 2)] == [False, False, True]


def test_without_refills_every_group_is_kept():
    state = make()
    state.acquire(0, 9)
    assert [state.put(0, flat(group)).accepted for group in (0, 1)] == [True, True]


def test_drop_of_a_ticket_that_was_given_back():
    state = make(samplers=2, max_staleness=1)
    state.acquire(0, 1)
    state.release(0)
    assert not state.drop(0, 0, "failed")
    assert ids(state.acquire(1, 1)) == [0]


def test_block_reserves_room_when_a_ticket_is_given():
    state = make(max_staleness=9, capacity=3)
    assert ids(state.acquire(0, 9)) == [0, 1, 2]
    state.put(0, group(0))
    assert state.acquire(0, 9) == []
    state.put(0, group(1))
    assert batch_ids(state) == [0, 1]
    assert ids(state.acquire(0, 9)) == [3, 4]


def test_drop_oldest_when_full():
    state = make(max_staleness=9, capacity=2, on_full="dropOldest")
    state.acquire(0, 5)
    results = [state.put(0, group(g)) for g in (3, 1, 0)]
    assert [r.dropped for r in results] == [(), (), (3,)]
    assert state.drops == {"buffer_full": 1}
    assert batch_ids(state) == [1, 0]


def test_reject_when_full():
    state = make(max_staleness=9, capacity=2, on_full="reject")
    state.acquire(0, 5)
    results = [state.put(0, group(g)) for g in (3, 1, 0)]
    assert [(r.accepted, r.reason) for r in results] == [(True, None), (True, None), (False, "rejected")]
    assert state.drops == {"rejected": 1}
    assert batch_ids(state) == [3, 1]


def test_the_batch_stays_the_same_until_commit():
    state = make(max_staleness=3)
    assert state.take() is None
    state.acquire(0, 8)
    for group_id in (2, 0, 1):
        state.put(0, group(group_id))
    assert batch_ids(state) == [2, 0]
    assert batch_ids(state) == [2, 0]
    assert state.commit() == 1
    state.put(0, group(3))
    assert batch_ids(state) == [1, 3]
    assert state.max_staleness_seen == 1


def test_commit_without_a_batch():
    with pytest.raises(RLTrainError, match="no batch is under lease"):
        make().commit()


def test_commit_of_half_a_batch():
    state = make()
    state.acquire(0, 9)
    state.put(0, group(0))
    assert [one.group_id for one in state.take(groups=1)] == [0]
    with pytest.raises(RLTrainError, match="only 1 of 2 groups of a batch are under lease"):
        state.commit()


def test_on_policy_the_first_part_waits_for_the_first_prompts():
    state = make(samplers=2, groups_per_step=3)
    state.acquire(0, 9)
    tickets = ids(state.acquire(1, 9))
    for group_id in tickets:
        state.put(1, group(group_id))
    assert tickets == [1]
    assert state.take(groups=1) is None
    state.release(0)  # 0 and 2 wait for somebody else
    assert state.take(groups=1) is None
    state.acquire(1, 9)
    state.put(1, group(2))
    assert state.take(groups=1) is None
    assert state.put(1, group(0)).accepted
    assert [one.group_id for one in state.take(groups=1)] == [0]
    assert batch_ids(state) == [0, 1, 2]


def test_refills_are_those_of_the_whole_batch():
    state = make(max_refills=1, max_staleness=1)
    state.acquire(0, 9)
    state.put(0, group(0))
    state.put(0, flat(1))
    state.take(groups=1)
    assert state.put(0, flat(2)).accepted, "its one refill is used"
    state.take()
    assert state.put(0, flat(3)).reason == "zero_variance"


def test_a_taken_batch_counts_as_consumed_at_once():
    state = make(max_staleness=0)
    state.acquire(0, 9)
    for group_id in (0, 1):
        state.put(0, group(group_id))
    state.take()
    assert state.acquire(0, 9) == []  # version 1 is not published
    state.publish(1)  # while the batch is still under lease: the learner publishes early
    assert ids(state.acquire(0, 9)) == [2, 3]


def test_versions_only_grow_and_never_run_ahead_of_training():
    state = make()
    run_step(state)
    state.publish(1)
    state.publish(1)
    with pytest.raises(RLTrainError, match="version 0 were published after version 1"):
        state.publish(0)
    with pytest.raises(RLTrainError, match="version 2 were published after 1 training steps"):
        state.publish(2)


def test_weights_published_every_second_step():
    state = make(steps_per_version=2, groups_per_step=2)
    assert ids(state.acquire(0, 99)) == [0, 1]  # a step's groups are laid out at a time
    run = state.acquire(0, 99)
    assert ids(run) == [2, 3]
    for group_id in range(4):
        state.put(0, group(group_id))
    for step in (1, 2):
        with pytest.raises(RLTrainError, match=f"version 1 were published after {step - 1} training steps"):
            state.publish(1)
        assert state.take() is not None
        assert state.commit() == step
    assert state.acquire(0, 99) == []
    state.publish(1)
    assert ids(state.acquire(0, 99)) == [4, 5]
    assert state.max_staleness_seen == 0


def test_the_buffer_has_the_contracts_defaults():
    config, contract = BufferConfig(groups_per_step=1), BufferSpec()
    assert (config.capacity, config.max_staleness) == (contract.capacity, contract.max_staleness)
    assert (config.order, config.on_full) == (contract.order, contract.on_full)
    assert (config.samplers, config.steps_per_version, config.alarm_seconds) == (1, 1, 60.0)


def test_capacity_below_one_step_is_refused():
    BufferConfig(groups_per_step=4, capacity=4)
    with pytest.raises(RLTrainError, match=r"buffer\.capacity is 3, but one step trains on 4 groups"):
        BufferConfig(groups_per_step=4, capacity=3)


def test_metrics_are_json_and_complete():
    state = make(max_staleness=1, capacity=4)
    state.acquire(0, 9)
    state.put(0, group(0), now=100.0)
    state.put(0, group(1), now=101.0)
    state.put(0, flat(2), now=101.0)
    state.drop(0, 3, "failed")
    state.take(now=103.0)
    expected = {
        "ready": 1,
        "in_rate": 0.75,  # 3 in the 4 seconds since the first
        "out_rate": 2.0,
        "drops": {"failed": 1},
        "max_staleness_seen": 0,
        "samplers": [0],
        "alarms": [],
    }
    assert json.loads(json.dumps(state.metrics(now=104.0))) == expected


def test_a_buffer_that_stays_empty_or_full_raises_an_alarm():
    state = make(max_staleness=1, capacity=2, alarm_seconds=10)
    assert state.metrics(now=100.0)["alarms"] == []  # empty since then
    assert state.metrics(now=110.0)["alarms"] == []
    assert "has been empty for 11 s" in state.metrics(now=111.0)["alarms"][0]
    state.acquire(0, 9)
    state.put(0, group(0), now=112.0)
    state.put(0, group(1), now=113.0)
    (alarm,) = state.metrics(now=130.0)["alarms"]
    assert "has been full for 17 s" in alarm
    state.take(now=131.0)
    (alarm,) = state.metrics(now=150.0)["alarms"]
    assert "has been empty for 19 s" in alarm


def test_what_a_consumer_waits_for():
    state = make(max_staleness=1)
    state.acquire(0, 3)
    state.put(0, group(0))
    assert state.waiting_for() == (
        "1 of 2 groups are ready, 2 are running in 1 samplers, 0 wait for a sampler, weight version 0"
    )
