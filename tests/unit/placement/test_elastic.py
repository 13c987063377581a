from __future__ import annotations

import pytest

from rl_api.errors import PlacementError
from rl_trainer.placement.elastic import Changes, Seat, changes, check_enough, free_rank, patience


def test_a_node_that_comes_gets_a_sampler_and_the_next_place_waits():
    at_work = Seat(0, "a", "a")
    assert changes([at_work], 0.0) == Changes(ask=True)
    assert changes([at_work, Seat(1)], 0.0) == Changes()
    assert changes([at_work, Seat(1, "b")], 0.0) == Changes(start=(1,), ask=True)


def test_where_the_run_says_how_many_there_are_no_more():
    assert changes([Seat(0, "a", "a"), Seat(1, "b")], 0.0, most=2) == Changes(start=(1,))
    assert changes([Seat(0, "a", "a"), Seat(1, "b", "b"), Seat(2)], 0.0, most=2) == Changes(give_back=(2,))


def test_a_sampler_whose_node_is_gone_is_given_up_and_one_place_waits():
    seats = [Seat(0, None, "a"), Seat(1, "b", "b"), Seat(2, None, "c"), Seat(3)]
    assert changes(seats, 0.0) == Changes(lost=(0, 2), give_back=(2, 3))


def test_a_place_that_ray_moved_to_another_node_gets_a_new_sampler_at_once():
    assert changes([Seat(0, "b", "a", died=0.0), Seat(1)], 0.0) == Changes(lost=(0,), start=(0,))


def test_a_dead_process_is_replaced_where_it_was_when_its_node_is_known_to_live():
    dead = Seat(0, "a", "a", died=100.0)
    assert changes([dead, Seat(1)], 104.9) == Changes()
    assert changes([dead, Seat(1)], 105.0) == Changes(crashed=(0,))
    again = Seat(0, "a", "a", died=100.0, failures=1)
    assert changes([again, Seat(1)], 109.9) == Changes()
    assert changes([again, Seat(1)], 110.0) == Changes(crashed=(0,))
    assert patience(2000) == 60.0


def test_a_sampler_that_left_is_not_replaced_while_its_node_goes():
    left = Seat(0, "a", "a", died=100.0, left=True)
    assert changes([left, Seat(1)], 159.9) == Changes()
    assert changes([left, Seat(1)], 160.0) == Changes(crashed=(0,)), "its node has stayed after all"
    assert changes([Seat(0, None, "a", died=100.0, left=True)], 101.0) == Changes(lost=(0,))


def test_ranks_are_used_again():
    assert free_rank([]) == 0
    assert free_rank([1, 0, 3]) == 2
    assert free_rank([1, 0]) == 2


def test_too_few_samplers_are_borne_for_a_while():
    assert check_enough(2, 2, since=5.0, now=90.0, timeout=60.0) is None
    assert check_enough(1, 2, since=None, now=10.0, timeout=60.0) == 10.0
    assert check_enough(1, 2, since=10.0, now=70.0, timeout=60.0) == 10.0
    with pytest.raises(PlacementError, match=r"samplers: 1 left, at least 2 must be there .* within 60 s"):
        check_enough(1, 2, since=10.0, now=70.1, timeout=60.0)
