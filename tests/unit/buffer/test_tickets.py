"""Who samples which group: ids in order, shares that are fixed on-policy, and groups of samplers that are gone."""

import pytest
from buffers import group, ids, make

from rl_api.errors import RLTrainError
from rl_trainer.buffer.groups import BufferConfig
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
