"""What a checkpoint holds of a run's actors."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rl_api.errors import CheckpointError
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.storage.ownership import Upload

WEIGHTS, OPTIMIZER, ADAPTER, CRITIC = "weights", "optimizer", "adapter", "critic"
"""What there is to be saved of learners, each in files of its own."""


@dataclass(frozen=True)
class SavedFiles:
    """What learners wrote.

    Attributes:
        digests: size and SHA-256 of each file, by its path within the folder.
        weight_map: of the weights: file by tensor, in the order of the files.
        weight_bytes: of all weights.
        uploaded: those files that lie in the object store and not in the folder.
    """

    digests: Digests
    weight_map: Mapping[str, str]
    weight_bytes: int
    uploaded: frozenset[str] = frozenset()


class Unfinished(Protocol):
    """Files of which everything is known, and that learners are writing while they go on, or have written.

    Attributes:
        refused: why some of them are not uploaded though they were to be; empty: nothing is wrong.
    """

    refused: str

    def finished(self) -> SavedFiles | None:
        """What was written; None: they are still at it. Raises CheckpointError when a file cannot be written."""
        ...

    def wait(self) -> SavedFiles:
        """What was written, once it is. Raises DeadlineExceeded when nothing moves for too long, else as `finished`."""
        ...

    def drop(self) -> None:
        """Nobody wants them any more."""
        ...


class WriteLearners(Protocol):
    """See `Learners.write`."""

    def __call__(
        self,
        folder: Path,
        parts: Mapping[str, str],
        *,
        background: bool = False,
        upload: Upload | None = None,
    ) -> Unfinished:
        """Begins to write."""
        ...


@dataclass(frozen=True)
class LearnerState:
    """What a checkpoint holds of the learners, which write it themselves.

    Attributes:
        optimizer_steps: taken since reinforcement learning began.
        contents: what there is: always WEIGHTS (fp32, by Hugging Face name; LoRA's merged) and OPTIMIZER (moments by
            parameter); ADAPTER with LoRA (under the names of the `peft` library); CRITIC where there is one.
        on_gpus: whether copies of it lie in another memory than it does itself.
        write: see `Learners.write`.
    """

    optimizer_steps: int
    contents: Collection[str]
    on_gpus: bool
    write: WriteLearners


@dataclass(frozen=True)
class SavedLearners:
    """Where a checkpoint on disk holds what learners wrote, but for the weights, which its model folder holds.

    Attributes:
        folder: of the checkpoint.
        optimizer: files within it, as are `adapter` and `critic`; the ranks that wrote them need not be those that read.
        optimizer_steps: see `LearnerState`.
        adapter: none where all weights learn.
        critic: none where there was none.
        uri: where these files are, instead of in `folder`; empty: they are there.
        digests: of a checkpoint at `uri` size and SHA-256 of all its files.
    """

    folder: Path
    optimizer: tuple[str, ...]
    optimizer_steps: int
    adapter: tuple[str, ...] = ()
    critic: tuple[str, ...] = ()
    uri: str = ""
    digests: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Those that there are, by what they are."""
        found = {OPTIMIZER: self.optimizer, ADAPTER: self.adapter, CRITIC: self.critic}
        return {content: names for content, names in found.items() if names}


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
