"""What a checkpoint holds of a run's actors, and arrays of groups as bytes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_api.errors import CheckpointError

Arrays = Mapping[str, npt.NDArray[Any]]

_COUNT = "groups"
# What NumPy and zipfile raise for bytes that are no archive, or not a whole one.
_UNREADABLE = (
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


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


def pack_groups(groups: Sequence[Arrays]) -> bytes:
    """Arrays of several groups as one .npz: any shapes and types but objects; order and names are kept.

    Args:
        groups: per group: name -> array.

    Raises:
        TypeError: an array holds Python objects (it would need pickle, which runs code when it is read).
    """
    arrays: dict[str, npt.NDArray[Any]] = {_COUNT: np.array(len(groups))}
    for index, group in enumerate(groups):
        for name, array in group.items():
            values = np.asarray(array)
            if values.dtype.hasobject:
                raise TypeError(f"array {name!r} of group {index} holds Python objects")
            arrays[f"{index}/{name}"] = values
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def unpack_groups(data: bytes) -> list[dict[str, npt.NDArray[Any]]]:
    """The groups that `pack_groups` packed. Raises CheckpointError when the bytes are something else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            groups: list[dict[str, npt.NDArray[Any]]] = [{} for _ in range(int(archive[_COUNT]))]
            for key in archive.files:
                if key != _COUNT:
                    index, _, name = key.partition("/")
                    groups[int(index)][name] = archive[key]
            return groups
    except _UNREADABLE as error:
        raise CheckpointError(f"The groups in a checkpoint cannot be read: {error}.") from error
