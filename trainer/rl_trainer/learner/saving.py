"""What one rank writes of a checkpoint or an export: its part of the tensors, into files of its own. No Ray here."""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rl_api.errors import CheckpointError, RLTrainError
from rl_trainer.checkpoint.shards import SHARD_BYTES, Shard, deal, model_shards, shard_name
from rl_trainer.checkpoint.state import ADAPTER, CRITIC, OPTIMIZER, WEIGHTS
from rl_trainer.checkpoint.tensor_file import ROWS, Digests, FileHead, ShardWriter, file_head
from rl_trainer.error_text import reason
from rl_trainer.learner.rank import Learner
from rl_trainer.learner.results import Written
from rl_trainer.model.export import WEIGHTS_METADATA
from rl_trainer.model.rows import copies, first_row, is_divided, local
from rl_trainer.storage.files import Closes
from rl_trainer.storage.remote_folder import RemoteFolder
from rl_trainer.weights.source import LazyTensor, TensorSource, lazy, source_of
from rl_trainer.weights.stream import CHUNK_BYTES, Piece, byte_rounds, file_shapes


def contents(learner: Learner) -> tuple[str, ...]:
    """What there is to be saved of this learner."""
    found = [WEIGHTS, OPTIMIZER]
    if learner.spec.learner.lora is not None:
        found.append(ADAPTER)
    if learner.critic is not None:
        found.append(CRITIC)
    return tuple(found)


@dataclass(frozen=True)
class _Files:
    """Some files of this rank and the source of their tensors; `file`: by tensor, of those that this rank writes."""

    source: TensorSource
    file: Mapping[str, str]
    heads: tuple[FileHead, ...]

    def named(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Pieces of tensors as pieces of files."""
        return [(self.file[name], data) for name, data in pieces]


class Save:
    """This rank's part of what is saved, as files that are made of pieces.

    All ranks make one at the same time, and go through `rounds` together: weights are gathered tensor by tensor from the
    ranks that divide them, and each is kept by the rank that writes it. Everything else a rank writes as it has it.

    Args:
        learner: nothing of it may change until the last round.
        parts: path and beginning of the files' names, such as model/model, by what is saved.
        limit: bytes in one file of weights at most.
        piece: bytes in one round at most.
        copied: what `rounds` gives stays as it was, whatever becomes of the learner.
    """

    def __init__(
        self,
        learner: Learner,
        parts: Mapping[str, str],
        *,
        limit: int = SHARD_BYTES,
        piece: int = CHUNK_BYTES,
        copied: bool = False,
    ):
        learner.require("its files of a checkpoint are written")
        self._rank, self._ranks, self._piece, self._copied = learner.rank, learner.ranks, piece, copied
        self._files: list[_Files] = []
        self.weight_map: dict[str, str] = {}
        """File of each weight, whoever writes it."""
        self.weight_bytes = 0
        """Of all weights."""
        if WEIGHTS in parts:
            source = source_of(learner.model.hf_tensors())  # type: ignore[operator]
            self.weight_bytes = sum(source.sizes().values())
            shards = model_shards(parts[WEIGHTS], source.sizes(), self._ranks, limit)
            self.weight_map = {name: shard.name for shard in shards for name in shard.tensors}
            self._whole(source, shards)
        if ADAPTER in parts:
            source = source_of(lazy(learner.model.adapter_state()))  # type: ignore[operator]
            # Little beside the model, and `peft` opens a single file.
            self._whole(source, [Shard(shard_name(parts[ADAPTER], 0, 1), 0, tuple(source.shapes))])
        if OPTIMIZER in parts:
            self._own_rows(parts[OPTIMIZER], learner.training.optimizer.state())
        if CRITIC in parts:
            assert learner.critic is not None, "only runs with a critic ask for its state"
            self._own_rows(parts[CRITIC], learner.critic.state())

    @property
    def heads(self) -> list[FileHead]:
        """The files of this rank."""
        return [head for files in self._files for head in files.heads]

    def rounds(self) -> Iterator[list[Piece]]:
        """The bytes of this rank's files after their heads, in order, each with the name of its file.

        A round of weights is one of all ranks; of what follows each rank may have another number.
        """
        for files in self._files:
            rounds = byte_rounds(files.source, files.file, limit=self._piece, copied=self._copied)
            yield from map(
                files.named, rounds
            )  # no loop, whose variable would keep a round while the next one is made

    def _whole(self, source: TensorSource, shards: list[Shard]) -> None:
        shapes = file_shapes(source)
        mine = [shard for shard in shards if shard.owner == self._rank]
        heads = tuple(
            file_head(shard.name, {name: shapes[name] for name in shard.tensors}, WEIGHTS_METADATA)
            for shard in mine
        )
        self._files.append(
            _Files(source, {name: shard.name for shard in mine for name in shard.tensors}, heads)
        )

    def _own_rows(self, base: str, state: Mapping[str, Tensor]) -> None:
        """One file of each rank: the rows it holds of `state`; of what several ranks hold each writes a share."""
        owners: dict[str, int] = {}
        places = {name: copies(value, self._rank, self._ranks) for name, value in state.items()}
        for count in {count for _, count in places.values()}:
            sizes = {
                name: value.dtype.itemsize * math.prod(value.shape)
                for name, value in state.items()
                if places[name][1] == count
            }
            owners |= deal(sizes, count)
        mine = {name: value for name, value in state.items() if owners[name] == places[name][0]}
        rows: dict[str, tuple[int, int]] = {}
        tensors: dict[str, LazyTensor] = {}
        for name, value in mine.items():
            here = local(value)
            if is_divided(value) and here.shape != value.shape:
                if not len(here):
                    continue
                rows[name] = (first_row(value), value.shape[0])
            tensors[name] = LazyTensor.of(here)
        source = source_of(tensors)
        name = shard_name(base, self._rank, self._ranks)
        metadata = {ROWS: json.dumps(rows)} if rows else None
        self._files.append(
            _Files(source, dict.fromkeys(tensors, name), (file_head(name, file_shapes(source), metadata),))
        )


class Writing(Closes):
    """Files of one rank, which it writes itself: as `add` is called or, with `background`, from `start` on by a thread.

    `check`: see `ShardWriter`. `tell` is called by the thread when it ends, with what it has written or failed with: whoever
    has the rank do something else meanwhile cannot ask.
    """

    def __init__(
        self,
        folder: Path | RemoteFolder,
        heads: Sequence[FileHead],
        *,
        background: bool,
        check: Callable[[], None] = lambda: None,
        tell: Callable[[Written | RLTrainError], None] = lambda said: None,
    ):
        self._writer, self._tell = ShardWriter(folder, heads, check), tell
        self._waiting: deque[Piece] | None = deque() if background else None
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()
        self._started = False
        self._written = 0
        self._digests: Digests | None = None
        self._failure: Exception | None = None

    def add(self, pieces: Sequence[Piece]) -> None:
        """The next bytes. Raises CheckpointError as `ShardWriter`."""
        if self._waiting is not None:
            self._waiting.extend(pieces)
            return
        for name, data in pieces:
            self._writer.write(name, data)

    def start(self) -> None:
        """There are no more: what is left to be done is done from now on, here or by the thread.

        A second call does nothing: a rank is asked for rounds until all have given their last, and ranks have different
        numbers of them.
        """
        if self._started:
            return
        self._started = True
        if self._waiting is None:
            self._digests = self._writer.finish()
            return
        self._thread = threading.Thread(target=self._write, name="checkpoint", daemon=True)
        self._thread.start()

    def look(self) -> Written:
        """How far it is. Raises what the thread failed with."""
        if self._failure is not None:
            raise self._failure
        return Written(self._written, self._digests)

    def close(self) -> None:
        """Nobody wants them any more; a thread ends with the piece that it is at."""
        self._given_up.set()
        if self._thread is None:
            self._writer.close()

    def _write(self) -> None:
        assert self._waiting is not None, "only what waits is written by the thread"
        with self._writer:
            try:
                while self._waiting and not self._given_up.is_set():
                    name, data = self._waiting.popleft()  # its memory is free again once it is written
                    self._writer.write(name, data)
                    self._written += len(data)
                    del data
                if not self._given_up.is_set():
                    self._digests = self._writer.finish()
            except Exception as error:  # for who looks
                self._failure = error
        if isinstance(self._failure, RLTrainError):
            self._tell(self._failure)
        elif self._failure is not None:
            self._tell(CheckpointError(f"a file cannot be written: {reason(self._failure)}"))
        elif self._digests is not None:
            self._tell(Written(self._written, self._digests))
