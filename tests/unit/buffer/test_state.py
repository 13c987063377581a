import json

import pytest
from buffers import batch_ids, flat, group, ids, make, run_step

from rl_api.errors import RLTrainError
from rl_api.roles import BufferSpec
from rl_trainer.buffer.groups import BufferConfig, Handed, PutResult
from rl_trainer.buffer.state import BufferState


def test_ids_are_the_prompt_cursor():
    state = make(max_staleness=1)
    assert ids(state.acquire(0, 3)) == [0, 1, 2]
    assert ids(state.acquire(0, 3)) == [3]  # (1 + 0 + 1) * 2 in all
    assert state.acquire(0, 3) == []
    assert state.cursor == 4


def test_on_policy_assignment_is_fixed_whoever_asks_first():
    state = make(samplers=2, groups_per_step=5)
    assert ids(state.acquire(1, 10)) == [1, 3]
    assert ids(state.acquire(0, 2)) == [0, 2]
    assert ids(state.acquire(0, 2)) == [4]


def test_on_policy_share_waits_for_a_sampler_that_is_not_there_yet():
    state = BufferState(BufferConfig(groups_per_step=4, capacity=4, samplers=2))
    state.register(0)
    assert ids(state.acquire(0, 10)) == [0, 2]
    state.register(1)
    assert ids(state.acquire(1, 10)) == [1, 3]


def test_on_policy_share_of_a_dead_sampler_goes_to_the_living():
    state = make(samplers=3, groups_per_step=6)
    assert ids(state.acquire(1, 1)) == [1]
    assert state.release(1) == [1]
    assert ids(state.acquire(0, 10)) == [0, 3, 4]  # its own 0 and 3, and 4 of the dead one
    tickets = state.acquire(2, 10)
    assert ids(tickets) == [1, 2, 5]
    assert [ticket.reissued for ticket in tickets] == [True, False, False]
    state.register(1)
    run_and_commit_all(state, {0: [0, 3, 4], 2: [1, 2, 5]})
    state.publish(1)
    assert ids(state.acquire(1, 10)) == [7, 10]  # back in its place


def run_and_commit_all(state, holders):
    for sampler, group_ids in holders.items():
        for group_id in group_ids:
            assert state.put(sampler, group(group_id)).accepted
    state.take()
    state.commit()


def test_on_policy_share_of_a_sampler_that_joins_is_of_what_nobody_has_yet():
    state = make(samplers=1, groups_per_step=4, capacity=8)
    assert [t.group_id for t in state.acquire(0, 4)] == [0, 1, 2, 3]
    state.register(1)
    assert state.acquire(1, 4) == []
    for group_id in range(4):
        state.put(0, group(group_id))
    state.take()
    state.commit()
    state.publish(1)
    assert [t.group_id for t in state.acquire(1, 4)] == [5, 7]
    assert [t.group_id for t in state.acquire(0, 4)] == [4, 6]
    assert state.release(1) == [5, 7]  # and leaves again
    assert [t.group_id for t in state.acquire(0, 4)] == [5, 7]


def test_prompts_of_a_dead_sampler_come_first_under_the_same_ids():
    state = make(samplers=2, max_staleness=2)
    state.acquire(0, 2)
    state.acquire(1, 1)
    assert state.release(0) == [0, 1]
    tickets = state.acquire(1, 3)
    assert ids(tickets) == [0, 1, 3]
    assert [ticket.reissued for ticket in tickets] == [True, True, False]


def test_a_reissued_group_takes_the_slot_of_a_new_one():
    state = make(samplers=2, max_staleness=2)
    state.acquire(0, 1)
    state.release(0)
    assert ids(state.acquire(1, 1)) == [0]
    assert (state.cursor, state.pending) == (1, [])


def test_what_waits_for_redispatch_holds_its_budget():
    state = make(samplers=2, max_staleness=1)
    assert ids(state.acquire(0, 9)) == [0, 1, 2, 3]
    state.release(0)
    assert ids(state.acquire(1, 9)) == [0, 1, 2, 3]


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("most", [0, -1])
def test_who_asks_for_nothing_gets_nothing(max_staleness, most):
    assert make(max_staleness=max_staleness).acquire(0, most) == []


def test_registering_again_gives_old_tickets_back():
    state = make(max_staleness=1)
    state.acquire(0, 2)
    state.register(0)
    assert ids(state.acquire(0, 1)) == [0]


def test_unregistered_sampler_gets_nothing():
    with pytest.raises(RLTrainError, match="sampler 5 asked for work but is not registered"):
        make().acquire(5, 1)


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


def test_while_learners_have_the_devices_samplers_that_share_them_begin_nothing():
    state = make(samplers=2, max_staleness=1, shared_samplers=1)
    state.learning = True
    assert state.acquire(0, 2) == []
    assert ids(state.acquire(1, 2)) == [0, 1]
    state.release(1)
    assert state.acquire(0, 1) == [], "it could not begin it, and learners may wait for it"
    state.learning = False
    assert ids(state.acquire(0, 1)) == [0]


def test_on_policy_others_sample_what_was_to_be_sampled_on_devices_that_learners_have():
    """Learners may keep them until it is there."""
    state = make(samplers=2, groups_per_step=4, capacity=4, shared_samplers=1, all_move=True, max_refills=1)
    assert ids(state.acquire(1, 9)) == [1, 3]
    state.learning = True
    state.recall()
    assert state.acquire(0, 9) == []
    assert ids(state.acquire(1, 1)) == [0]
    state.put(1, flat(0))
    assert ids(state.acquire(1, 9)) == [2, 4], "one more in its place"
    state.learning = False
    assert state.acquire(0, 9) == []
    for group_id in (1, 2, 3, 4):
        state.put(1, group(group_id))
    assert batch_ids(state) == [1, 2, 3, 4]
    state.commit()
    state.publish(1)
    assert ids(state.acquire(0, 9)) == [6, 8], "its share again"


@pytest.mark.parametrize("staleness", [0, 1])
def test_what_came_to_a_sampler_after_learners_had_its_device_is_for_others(staleness):
    config = {"groups_per_step": 4, "capacity": 4, "shared_samplers": 1}
    for all_move in (False, True):
        state = make(samplers=2, max_staleness=staleness, all_move=all_move, **config)
        mine = ids(state.acquire(0, 2))
        others = ids(state.acquire(1, 2))
        state.learning = True
        state.recall()
        assert ids(state.acquire(1, 9)) == (mine if all_move else [])
        assert state.put(0, group(mine[0])).accepted, "it had ended it after all"
        for group_id in {*mine, *others}:
            state.put(1, group(group_id))
        assert state.take() is not None


@pytest.mark.parametrize("staleness", [0, 1])
def test_when_so_many_groups_are_finished_samplers_that_share_devices_leave_the_rest(staleness):
    state = make(
        samplers=2,
        max_staleness=staleness,
        groups_per_step=4,
        capacity=4,
        shared_samplers=1,
        hand_over_at=0.5,
    )
    mine = ids(state.acquire(0, 2))
    other = ids(state.acquire(1, 2))
    state.put(1, group(other[0]))
    assert not state.helped
    state.put(0, group(mine[0]))
    assert state.helped
    assert state.acquire(0, 9) == []
    state.hand_over(0, [Handed(mine[1], None)])
    assert state.acquire(0, 9) == []
    state.put(1, group(other[1]))
    assert ids(state.acquire(1, 9)) == [mine[1]], "though it has no token yet"
    assert len(state.take(groups=2)) == 2
    assert state.helped, "the batch is the same"
    state.put(1, group(mine[1]))
    state.take()
    assert not state.helped


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


def test_what_is_handed_over_goes_to_a_sampler_with_a_device_of_its_own_and_keeps_its_version():
    state = make(samplers=2, max_staleness=1, shared_samplers=1)
    tickets = state.acquire(0, 4)
    for step in range(2):
        state.put(0, group(step))
    state.take()
    state.commit()
    state.publish(1)
    assert state.hand_over(0, [Handed(2, 0, b"begun"), Handed(3, None), Handed(0, 0), Handed(9, 0)]) == [2, 3]
    assert [ticket.begun for ticket in tickets] == [None] * 4
    assert state.take(groups=1) is None
    assert ids(state.acquire(0, 1)) == [4], "what it gave away is not for itself"
    first, plain = state.acquire(1, 2)
    assert (first.group_id, first.version, first.begun) == (2, 0, b"begun")
    assert (plain.group_id, plain.version, plain.reissued, plain.begun) == (3, 1, True, None)
    assert state.put(0, group(2)).reason is None, "the one that handed it over had ended it after all"
    assert list(state.begun) == [3]


def test_whoever_takes_a_group_over_may_die_and_the_next_one_goes_on_from_the_same_place():
    state = make(samplers=3, max_staleness=1, shared_samplers=1)
    state.acquire(0, 1)
    state.hand_over(0, [Handed(0, 0, b"begun")])
    assert [ticket.begun for ticket in state.acquire(1, 1)] == [b"begun"]
    state.release(1)
    assert [ticket.begun for ticket in state.acquire(2, 1)] == [b"begun"]
    state.release(2)
    assert [ticket.begun for ticket in state.acquire(0, 1)] == [b"begun"], "there is no other any more"
    assert state.put(0, group(0)).accepted


def test_a_group_that_waits_with_old_tokens_is_waited_for_in_time():
    state = make(samplers=2, max_staleness=1, shared_samplers=1, groups_per_step=2, capacity=4)
    state.acquire(0, 1)
    state.acquire(1, 9)
    state.put(1, group(1))
    state.put(1, group(2))
    assert batch_ids(state) == [1, 2]
    state.commit()
    state.publish(1)
    state.hand_over(0, [Handed(0, 0, b"begun")])
    state.put(1, group(3))
    for ticket in state.acquire(0, 9):
        state.put(0, group(ticket.group_id, 1))
    assert state.take() is None, "version 0 is trained on now or never"
    state.acquire(1, 1)
    state.put(1, group(0))
    assert sorted(batch_ids(state)) == [0, 3]
    assert state.max_staleness_seen == 1


def test_on_policy_a_group_that_is_handed_over_changes_its_home():
    state = make(samplers=2, shared_samplers=1)
    assert ids(state.acquire(0, 9)) == [0]
    state.hand_over(0, [Handed(0, 0, b"begun")])
    assert state.acquire(0, 9) == []
    assert ids(state.acquire(1, 9)) == [0, 1]


def test_tokens_older_than_the_ticket_are_not_handed_over():
    state = make(max_staleness=1)
    state.publish(0)
    state.acquire(0, 2)
    for group_id in (0, 1):
        state.put(0, group(group_id))
    state.take()
    state.commit()
    state.publish(1)
    (ticket, *_) = state.acquire(0, 9)
    with pytest.raises(RLTrainError, match=r"older than version 1 of its ticket"):
        state.hand_over(0, [Handed(ticket.group_id, 0, b"")])


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
