"""What a checkpoint holds of a run's actors."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.tensor_file import TensorStream


@dataclass(frozen=True)
class LearnerState:
    """What a checkpoint holds of the learners, which send it when it is written.

    Attributes:
        weights: fp32, by Hugging Face name; LoRA's merged.
        optimizer: moments by parameter.
        optimizer_steps: taken since reinforcement learning began.
        adapter: of LoRA, under the names of the `peft` library; None where all weights learn.
        critic: see `Critic.state`; None without one.
    """

    weights: TensorStream
    optimizer: TensorStream
    optimizer_steps: int
    adapter: TensorStream | None
    critic: TensorStream | None


@dataclass(frozen=True)
class SavedLearners:
    """Where a checkpoint on disk holds what `LearnerState` says, but for the weights, which its model folder holds.

    Attributes:
        folder: of the checkpoint.
        optimizer: file within it, as are `adapter` and `critic`.
        optimizer_steps: see `LearnerState`.
        adapter: None where all weights learn.
        critic: None where there was none.
    """

    folder: Path
    optimizer: str
    optimizer_steps: int
    adapter: str | None
    critic: str | None

    @property
    def files(self) -> list[str]:
        """Those that there are."""
        return [name for name in (self.optimizer, self.adapter, self.critic) if name is not None]


Learned = TypeVar("Learned", LearnerState, SavedLearners)


@dataclass(frozen=True)
class RunState(Generic[Learned]):
    """What a checkpoint holds of a run's actors.

    Attributes:
        learners: see there.
        random_states: of the learners by rank; None for one that the checkpoint knows none of.
        buffer: see `BufferState.snapshot`.
        payloads: of its ready groups, as bytes.
    """

    learners: Learned
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
