"""Payloads and random states through bytes and back."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.random_state import capture_rng, restore_rng
from rl_trainer.checkpoint.state import pack_payloads, unpack_payloads

torch.set_num_threads(1)


@given(payloads=st.lists(st.binary(), max_size=4))
def test_payloads_come_back(payloads: list[bytes]) -> None:
    assert unpack_payloads(pack_payloads(payloads)) == payloads


@pytest.mark.parametrize("data", [b"", b"not an archive", pack_payloads([b"123"])[:-30]])
def test_broken_groups_are_named(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="groups in a checkpoint cannot be read"):
        unpack_payloads(data)


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
