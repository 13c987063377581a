"""Trajectories and groups as samplers make them, with what a test does not ask about filled in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rl_trainer.algorithms.value_targets import Advantage
from rl_trainer.trajectory import Group, Trajectory


def sampled(
    tokens: npt.NDArray[np.int32],
    mask: npt.NDArray[np.bool_],
    log_probs: npt.NDArray[np.float32],
    advantage: Advantage = 0.0,
    versions: npt.NDArray[np.int32] | None = None,
) -> Trajectory:
    """Sampled with weights of version 0."""
    if versions is None:
        versions = np.zeros(len(log_probs), np.int32)
    return Trajectory(tokens, mask, log_probs, versions, advantage=advantage)


def scored(
    group_id: int,
    rewards: list[float],
    lengths: list[int],
    version: int = 0,
    payload: bytes = b"",
    **fields: Any,
) -> Group:
    """What is known of a group, whose arrays nobody looks at."""
    return Group(
        group_id, rewards, lengths, lengths, [False] * len(lengths), version, payload=payload, **fields
    )
