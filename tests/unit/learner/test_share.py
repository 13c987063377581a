"""Shares of a batch: a rank gets the groups that it needs, each once, and finds its members in them."""

from __future__ import annotations

import pickle

import numpy as np

from rl_trainer.algorithms.value_targets import ValueTargets
from rl_trainer.learner.plan import Member
from rl_trainer.learner.share import deal

PAYLOADS = [b"zero", b"one", b"two", b"three"]


def found(share):
    """Payload, member and advantage of each trajectory, by selection."""
    return [
        [
            (share.payloads[group], int(member), advantage)
            for group, member, advantage in zip(
                part.groups, part.members, part.member_advantages(), strict=True
            )
        ]
        for part in share.selections
    ]


def test_a_rank_gets_its_groups_alone_and_its_members_in_order():
    first = [[Member(2, 1, 0.5), Member(0, 0, -1.0)], [Member(2, 0, 2.0)]]
    second = [[], [Member(3, 1, 1.0)]]
    one, two = deal(PAYLOADS, [first, second])
    assert (one.payloads, two.payloads) == ((b"zero", b"two"), (b"three",))
    assert found(one) == [[(b"two", 1, 0.5), (b"zero", 0, -1.0)], [(b"two", 0, 2.0)]]
    assert found(two) == [[], [(b"three", 1, 1.0)]]


def test_what_several_ranks_need_is_put_once_and_nothing_else_is():
    put = []
    chosen = [[[Member(1, 0, 0.0), Member(0, 0, 0.0)]], [[Member(1, 1, 0.0)]], [[Member(1, 2, 0.0)]]]
    shares = deal(PAYLOADS, chosen, put=lambda data: put.append(data) or "reference")
    assert put == [b"one"]
    assert [share.payloads for share in shares] == [(b"zero", "reference"), ("reference",), ("reference",)]
    put.clear()
    deal([b"zero", object()], chosen, put=put.append)  # what is a reference already
    assert put == []


def test_numbers_travel_as_one_array_and_keep_every_bit():
    numbers = [0.1, float(np.float32(1 / 3)), -1e-300]
    (share,) = deal(PAYLOADS, [[[Member(0, index, number) for index, number in enumerate(numbers)]]])
    (part,) = pickle.loads(pickle.dumps(share)).selections
    assert part.advantages.dtype == np.float64
    assert part.member_advantages() == numbers


def test_advantages_of_tokens_travel_as_they_are():
    targets = ValueTargets(np.ones(2), np.zeros(2), np.zeros(2))
    (share,) = deal(PAYLOADS, [[[Member(0, 0, 1.0), Member(0, 1, np.arange(3.0)), Member(1, 0, targets)]]])
    number, tokens, valued = share.selections[0].member_advantages()
    assert (number, tokens.tolist(), valued is targets) == (1.0, [0.0, 1.0, 2.0], True)
