"""Samplers that share devices with learners: what they get, and what others go on with."""

import pytest
from buffers import batch_ids, flat, group, ids, make

from rl_api.errors import RLTrainError
from rl_trainer.buffer.groups import Handed


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


@pytest.mark.parametrize("over", ["put", "release", "hand over", "drop"])
def test_what_a_sampler_keeps_is_its_own_till_that_is_over(over):
    state = make(samplers=2, max_staleness=2, groups_per_step=4, capacity=8, shared_samplers=1, all_move=True)
    first, second = state.acquire(0, 2)
    state.keep(0, first.group_id, first.issue)
    state.keep(0, second.group_id, first.issue)  # of a ticket that it has no more
    state.keep(1, second.group_id, second.issue)  # which is another's
    state.recall()
    assert ids(state.acquire(1, 1)) == [second.group_id]
    if over == "put":
        assert state.put(0, group(first.group_id)).accepted
    elif over == "release":
        assert state.release(0) == [first.group_id]
    elif over == "hand over":
        assert state.hand_over(0, [Handed(first.group_id, 0, b"begun")]) == [first.group_id]
    else:
        assert state.drop(0, first.group_id, "reward_error")
    assert not state.kept


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
    (plain,) = state.acquire(0, 1)
    assert plain.group_id == 3, "of what it gave away it goes on with that alone of which there is no token"
    assert (plain.version, plain.reissued, plain.begun) == (1, True, None)
    assert ids(state.acquire(0, 1)) == [4]
    (first,) = state.acquire(1, 1)
    assert (first.group_id, first.version, first.begun) == (2, 0, b"begun")
    assert state.put(0, group(2)).reason is None, "the one that handed it over had ended it after all"
    assert state.begun == {}


def test_on_policy_a_group_without_tokens_is_still_for_the_sampler_that_gave_it_back():
    state = make(samplers=2, shared_samplers=1)
    assert ids(state.acquire(0, 9)) == [0]
    state.hand_over(0, [Handed(0, None)])
    assert ids(state.acquire(1, 9)) == [1]
    assert ids(state.acquire(0, 9)) == [0]


def test_what_was_sampled_for_a_ticket_that_was_taken_back_ends_nothing():
    """Sampler 0 gets a group twice: its copy of the first time has older tokens than the ticket of the second."""
    state = make(samplers=2, max_staleness=2, groups_per_step=1, shared_samplers=1, all_move=True)
    (old,) = state.acquire(0, 1)
    state.learning = True
    state.recall()
    state.learning = False
    assert not state.owns(0, 0, old.issue)
    assert ids(state.acquire(1, 2)) == [0, 1]
    state.put(1, group(1))
    assert batch_ids(state) == [1]
    state.commit()
    state.publish(1)
    state.release(1)
    (new,) = state.acquire(0, 1)
    assert (new.group_id, new.version) == (0, 1)
    assert not state.owns(0, 0, old.issue)
    assert state.owns(0, 0, new.issue)
    assert state.hand_over(0, [Handed(0, 0, b"begun", old.issue)]) == []
    assert state.put(0, group(0, 0, issue=old.issue)).accepted, "its tokens can be trained on in time"
    assert state.put(0, group(0, 1, issue=new.issue)).reason == "duplicate"
    assert batch_ids(state) == [0]


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
