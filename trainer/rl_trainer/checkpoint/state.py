"""What a checkpoint holds of a run's actors."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_api.errors import CheckpointError

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class LearnerState:
    """What a checkpoint holds of the learners.

    Attributes:
        weights: fp32, by Hugging Face name; LoRA's merged.
        optimizer: moments by parameter.
        optimizer_steps: taken since reinforcement learning began.
        adapter: of LoRA, under the names of the `peft` library; None where all weights learn.
        critic: see `Critic.state`; None without one.
    """

    weights: Arrays
    optimizer: Arrays
    optimizer_steps: int
    adapter: Arrays | None
    critic: Arrays | None


@dataclass(frozen=True)
class RunState:
    """What a checkpoint holds of a run's actors.

    Attributes:
        learners: see there.
        random_states: of the learners by rank; None for one that the checkpoint knows none of.
        buffer: see `BufferState.snapshot`.
        payloads: of its ready groups, as bytes.
    """

    learners: LearnerState
    random_states: Sequence[bytes | None]
    buffer: Mapping[str, Any]
    payloads: Sequence[bytes]


def pack_payloads(payloads: Sequence[bytes]) -> bytes:
    """Payloads of groups as one .npz."""
    arrays = {f"{index}/payload": np.frombuffer(data, np.uint8) for index, data in enumerate(payloads)}
    stream = io.BytesIO()
    np.savez(stream, groups=np.array(len(payloads)), **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def unpack_payloads(data: bytes) -> list[bytes]:
    """What `pack_payloads` packed. Raises CheckpointError when the bytes are something else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return [archive[f"{index}/payload"].tobytes() for index in range(int(archive["groups"]))]
    except Exception as error:  # NumPy and zipfile raise many kinds
        raise CheckpointError(f"The groups in a checkpoint cannot be read: {error}.") from error
