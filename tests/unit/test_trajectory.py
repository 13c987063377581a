import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_api.errors import RLTrainError
from rl_trainer.observe.timeline import Span
from rl_trainer.trajectory import Group, Trajectory, pack, unpack


def trajectory(length, rng):
    mask = rng.random(length) < 0.6
    sampled = int(mask.sum())
    return Trajectory(
        rng.integers(0, 2**31 - 1, length, dtype=np.int32),
        mask,
        rng.standard_normal(sampled).astype(np.float32),
        rng.integers(0, 9, sampled, dtype=np.int32),
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 2**32))
def test_a_group_survives_the_wire(lengths, seed):
    rng = np.random.default_rng(seed)
    group = [trajectory(length, rng) for length in lengths]
    data = pack(group)
    for wire in (data, np.frombuffer(data, np.uint8)):
        back = unpack(wire)
        assert len(back) == len(group)
        for one, other in zip(group, back, strict=True):
            for name in ("tokens", "mask", "log_probs", "versions"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
                assert getattr(one, name).dtype == getattr(other, name).dtype


def test_it_is_compact():
    rng = np.random.default_rng(0)
    group = [trajectory(1000, rng) for _ in range(8)]
    sampled = sum(len(one.log_probs) for one in group)
    assert len(pack(group)) == 24 + 4 * 9 + 5 * 8000 + 8 * sampled


def test_lengths_that_do_not_match():
    ones = np.ones(3, np.int32)
    bad = Trajectory(ones, np.ones(3, bool), np.zeros(2, np.float32), ones)
    with pytest.raises(
        RLTrainError, match=r"trajectory 0 has 3 tokens, 3 mask entries \(3 sampled\), 2 log-probs"
    ):
        pack([bad])


def test_a_group_says_of_each_trajectory_what_others_ask_about():
    def one(mask, versions, **fields):
        size = len(versions)
        return Trajectory(
            np.arange(len(mask), dtype=np.int32),
            np.array(mask),
            np.zeros(size, np.float32),
            np.array(versions, np.int32),
            **fields,
        )

    members = [
        one([False, True, True], [4, 5], reward=0.5),
        one([False, True, False, False, True], [3, 6], reward=-1.0, truncated=True),
    ]
    span = Span("sampler 0", "generate", 1.0, 2.0)
    group = Group.of(7, members, priority=2.0, spans=[span])
    assert (group.rewards, group.truncated) == ([0.5, -1.0], [False, True])
    assert (group.lengths, group.total_lengths, group.min_version) == ([2, 2], [3, 5], 3)
    back = Group.load(json.loads(json.dumps(group.dump())), group.payload)
    assert back == group
    for before, after in zip(members, back.trajectories(back.payload), strict=True):
        assert (after.reward, after.truncated) == (before.reward, before.truncated)
        np.testing.assert_array_equal(after.versions, before.versions)


@pytest.mark.parametrize("damage", [lambda d: d[:10], lambda d: d[:-1], lambda d: b"X" + d[1:]])
def test_damaged_payload(damage):
    data = pack([trajectory(5, np.random.default_rng(1))])
    with pytest.raises(RLTrainError, match="payload"):
        unpack(damage(data))
