from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.learner.plan import plan_update

groups = st.lists(st.lists(st.integers(2, 40), min_size=2, max_size=4), min_size=1, max_size=6)


@given(groups, st.integers(1, 3), st.integers(1, 4), st.integers(1, 2))
def test_every_trajectory_is_in_one_mini_batch_of_each_epoch(
    lengths: list[list[int]], ranks: int, count: int, epochs: int
):
    advantages = [float(index) for index in range(sum(map(len, lengths)))]
    sampled = [[length - 1 for length in group] for group in lengths]
    plans = plan_update(
        lengths, sampled, advantages, ranks=ranks, mini_batch_count=count, epochs=epochs, seed=(1, 2)
    )
    per_epoch = min(count, len(lengths))
    assert len(plans) == epochs * per_epoch
    expected = {(g, m) for g, group in enumerate(lengths) for m in range(len(group))}
    for epoch in range(epochs):
        part = plans[epoch * per_epoch : (epoch + 1) * per_epoch]
        members = [member for plan in part for rank in plan.ranks for member in rank]
        assert {(member.group, member.member) for member in members} == expected
        assert len(members) == len(expected)
        starts = np.cumsum([0, *map(len, lengths)])
        assert all(member.advantage == starts[member.group] + member.member for member in members)
        assert sum(plan.denominators.tokens for plan in part) == sum(map(sum, sampled))


@given(groups, st.integers(1, 3))
def test_denominators_are_of_the_whole_mini_batch_whatever_the_ranks(lengths: list[list[int]], ranks: int):
    advantages = [0.0] * sum(map(len, lengths))
    (plan,) = plan_update(lengths, lengths, advantages, ranks=ranks, constant_length=7)
    flat = [length for group in lengths for length in group]
    assert plan.denominators == LossDenominators(sum(flat), len(flat), 7)
    assert len(plan.ranks) == ranks


def test_who_is_left_out_is_trained_nowhere_and_in_no_denominator():
    advantages = [1.0, 2.0, np.array([3.0, 4.0]), 5.0]
    lengths, sampled = [[5, 6], [7, 8]], [[3, 4], [2, 6]]
    (plan,) = plan_update(lengths, sampled, advantages, ranks=2, left_out=[[False, True], [False, False]])
    members = sorted((m.group, m.member) for rank in plan.ranks for m in rank)
    assert members == [(0, 0), (1, 0), (1, 1)]
    assert plan.denominators == LossDenominators(3 + 2 + 6, 3)
    found = {(m.group, m.member): m.advantage for rank in plan.ranks for m in rank}
    assert found[0, 0] == 1.0
    assert found[1, 0] is advantages[2]


def test_the_seed_gives_the_cut():
    lengths = [[4, 4]] * 8
    advantages = [0.0] * 16

    def cut(seed: int) -> list[list[int]]:
        plans = plan_update(lengths, lengths, advantages, ranks=1, mini_batch_count=4, seed=seed)
        return [sorted({member.group for member in plan.ranks[0]}) for plan in plans]

    assert cut(3) == cut(3)
    assert cut(3) != cut(4)
