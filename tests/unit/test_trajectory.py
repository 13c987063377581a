import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_api.errors import RLTrainError
from rl_trainer.trajectory import Trajectory, pack_group, unpack_group


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
    data = pack_group(group).to_bytes()
    for wire in (data, np.frombuffer(data, np.uint8)):
        back = unpack_group(wire).trajectories()
        assert len(back) == len(group)
        for one, other in zip(group, back, strict=True):
            for name in ("tokens", "mask", "logprobs", "versions"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
                assert getattr(one, name).dtype == getattr(other, name).dtype


def test_it_is_compact():
    rng = np.random.default_rng(0)
    group = [trajectory(1000, rng) for _ in range(8)]
    sampled = sum(len(one.logprobs) for one in group)
    assert len(pack_group(group).to_bytes()) == 24 + 4 * 9 + 5 * 8000 + 8 * sampled


def test_lengths_that_do_not_match():
    ones = np.ones(3, np.int32)
    bad = Trajectory(ones, np.ones(3, bool), np.zeros(2, np.float32), ones)
    with pytest.raises(
        RLTrainError, match=r"trajectory 0 has 3 tokens, 3 mask entries \(3 sampled\), 2 log-probs"
    ):
        pack_group([bad])


@pytest.mark.parametrize("damage", [lambda d: d[:10], lambda d: d[:-1], lambda d: b"X" + d[1:]])
def test_damaged_payload(damage):
    data = pack_group([trajectory(5, np.random.default_rng(1))]).to_bytes()
    with pytest.raises(RLTrainError, match="payload"):
        unpack_group(damage(data))
