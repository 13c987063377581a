"""Arrays and random states through bytes and back."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.random_state import capture_rng, restore_rng
from rl_trainer.checkpoint.state import pack_groups, unpack_groups

torch.set_num_threads(1)

any_array = arrays.arrays(
    dtype=st.sampled_from([np.int32, np.float32, np.float64, np.bool_, np.uint8]),
    shape=arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
)
any_group = st.dictionaries(st.text("abz_/.0", min_size=1, max_size=5), any_array, max_size=3)


@given(groups=st.lists(any_group, max_size=4))
def test_groups_come_back_bit_by_bit(groups: list[dict[str, Any]]) -> None:
    back = unpack_groups(pack_groups(groups))
    assert [list(group) for group in back] == [list(group) for group in groups]
    for group, original in zip(back, groups, strict=True):
        for name, array in original.items():
            assert group[name].dtype == array.dtype
            assert group[name].shape == array.shape
            assert group[name].tobytes() == array.tobytes()


def test_arrays_of_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="array 'texts' of group 1 holds Python objects"):
        pack_groups([{}, {"texts": np.array(["a", None], dtype=object)}])


@pytest.mark.parametrize("data", [b"", b"not an archive", pack_groups([{"a": np.ones(3)}])[:-30]])
def test_broken_groups_are_named(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="groups in a checkpoint cannot be read"):
        unpack_groups(data)


def draw() -> list[Any]:
    """One draw of each kind; normals, since those hold a second value back."""
    return [random.random(), random.gauss(0, 1), np.random.standard_normal(), torch.randn(3).tolist()]


def test_random_states_come_back() -> None:
    draw()  # away from the beginning
    state = capture_rng()
    first = [draw() for _ in range(3)]
    restore_rng(state)
    assert [draw() for _ in range(3)] == first


def test_the_state_is_json() -> None:
    assert set(json.loads(capture_rng())) == {"python", "numpy", "torch"} | (
        {"cuda"} if torch.cuda.is_initialized() else set()
    )


@pytest.mark.parametrize(
    ("data", "missing"),
    [(b"{}", "KeyError"), (b"\x00", "Error"), (b"[]", "TypeError"), (b'{"python": 3}', "TypeError")],
)
def test_broken_states_are_named(data: bytes, missing: str) -> None:
    with pytest.raises(
        CheckpointError, match=f"random states in a checkpoint cannot be restored: .*{missing}"
    ):
        restore_rng(data)


def test_accelerators_beyond_this_machine_are_left_out() -> None:
    state = json.loads(capture_rng())
    state["cuda"] = [state["torch"]] * (torch.cuda.device_count() + 1)
    if torch.cuda.device_count() == 0:
        restore_rng(json.dumps(state).encode())
