"""Weights where the learner has them: samplers with the same device map the learner's memory and copy what they want of it.

Of a GPU that is CUDA IPC, of CPUs a file in memory; all else is the same. The first learner packs a version into one piece
of memory of its device, beside its own tensors. What travels says where that is, and nothing else. Who receives a version
holds a connection to the learner (`ipc_desk.py`) until no tensor of it is left, and the memory stays until then, whatever is
published meanwhile, and for as long as anybody has the publication: as blocks in the store do.

A device has two versions at most, the second while the first is still read or wanted. One for which there is no room, or
that the device cannot share, goes through the store instead, as do all, besides, for samplers elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from rl_api.errors import DeadlineExceeded, ModelError
from rl_trainer.error_text import first_line
from rl_trainer.weights.payload import (
    BLOCK_BYTES,
    Index,
    Place,
    Rooms,
    Taken,
    Tensors,
    WeightsBlock,
    checksum_of,
    damaged,
    end_of,
    fill_block,
    parts_of,
)
from rl_trainer.weights.source import TensorSource
from rl_trainer.weights.transports.base import HOST, Lends, Offer, Store, never
from rl_trainer.weights.transports.cuda_memory import CudaMemory, map_cuda, uuid_of
from rl_trainer.weights.transports.host_memory import HostMemory, map_host
from rl_trainer.weights.transports.ipc_desk import LendingDesk, Memory, NotLent, lease
from rl_trainer.weights.transports.object_store import (
    StorePublisher,
    StoreReceiver,
    put_blocks,
    take_blocks,
    take_part,
)
from rl_trainer.weights.transports.publication import Publication

MOST_VERSIONS: Final = 2
# Of the factors of a checksum: any number with bits everywhere.
_EVEN: Final = 0x1E3779B97F4A7C16


@dataclass(frozen=True)
class SharedVersion:
    """Where a version is, and what.

    Attributes:
        version: weight version.
        number: of it at the desk.
        desk: address of that.
        device: cpu, or the UUID of a GPU.
        handle: of its memory on a GPU.
        blocks: of each, where in the memory its tensors are; they are one after the other.
        checksums: of each.
    """

    version: int
    number: int
    desk: str
    device: str
    handle: bytes
    blocks: tuple[Index, ...]
    checksums: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return sum(map(end_of, self.blocks))


class IpcPublisher:
    """Implements `Publisher`: all weights, in memory of the learner's device."""

    def __init__(self, store: Store, rank: int, limit: int = BLOCK_BYTES, *, others: bool = False):
        """`limit`: bytes of a block at most; `others`: samplers elsewhere take every version from the store."""
        self._store, self._rank, self._limit, self._others = store, rank, limit, others
        self._from_store = StorePublisher(store, rank, limit)
        self._desk = LendingDesk() if rank == 0 else None
        self._number = 0
        self._rooms = Rooms()
        self._told: set[str] = set()

    def publish(self, offer: Offer, version: int) -> Publication | None:
        """See `Publisher.publish`."""
        source = offer.as_laid()
        if self._desk is None:
            take_part(source)
            return None
        self._number += 1
        blocks = tuple(parts_of(source, self._limit))
        memory = self._memory(sum(map(end_of, blocks)), offer.device, version)
        if memory is None:
            return self._from_store.publish(Offer(lambda: source), version)
        try:
            shared = self._filled(memory, blocks, source, version, offer.device)
            handle = self._store.put(shared)
            whole = self._whole(memory, shared) if self._others else None
        except BaseException:
            memory.close()
            raise
        self._desk.add(self._number, memory, self._store.watch(handle))
        return Publication(version, "ipc", [handle], whole=whole)

    def withdraw(self) -> None:
        """Gives back what nobody reads or wants, of the last version too; on the first rank."""
        assert self._desk is not None
        self._desk.drop_before(self._number + 1)

    def _memory(self, size: int, device: torch.device, version: int) -> Memory | None:
        """None: the version goes through the store; this process's log says why, once for each reason."""
        assert self._desk is not None
        if self._desk.drop_before(self._number) >= MOST_VERSIONS:
            kind = reason = f"samplers have or may still ask for the {MOST_VERSIONS} versions before"
        else:
            try:
                return HostMemory(size) if device.type == HOST.type else CudaMemory(size, device)
            except MemoryError as error:
                kind, reason = "room", first_line(error)
            except (RuntimeError, OSError) as error:  # of the driver
                kind = reason = f"its device cannot share memory ({first_line(error)})"
        if kind not in self._told:
            self._told.add(kind)
            print(
                f"learner {self._rank}: weights of version {version} go through the object store, not by "
                f"weightSync.transport: ipc, as {reason}; so do later ones as long as that is so",
                file=sys.stderr,
                flush=True,
            )
        return None

    def _filled(
        self,
        memory: Memory,
        blocks: tuple[Index, ...],
        source: TensorSource,
        version: int,
        device: torch.device,
    ) -> SharedVersion:
        assert self._desk is not None
        assert memory.tensor is not None
        taken = Taken(source.items())
        for index, block in zip(blocks, _cut(memory.tensor, blocks), strict=True):
            fill_block(block, index, taken)
        taken.finish()
        # Whoever reads does not wait for what a GPU has still to do here: the sums do, as the host takes them.
        sums = tuple(checksums(list(_cut(memory.tensor, blocks))))
        name = _name(device)
        return SharedVersion(version, self._number, self._desk.address, name, memory.handle, blocks, sums)

    def _whole(self, memory: Memory, shared: SharedVersion) -> Publication:
        """The same through the store, from the memory: the source is made once."""
        assert memory.tensor is not None
        made = self._host_blocks(memory.tensor, shared)
        return Publication(shared.version, "objectStore", put_blocks(self._store, made))

    def _host_blocks(self, memory: Tensor, shared: SharedVersion) -> Iterator[WeightsBlock]:
        """Each is good until the one after the next is made."""
        count = len(shared.blocks)
        for number, block in enumerate(_cut(memory, shared.blocks)):
            here = block if block.device.type == HOST.type else self._rooms(block.numel()).copy_(block)
            array = here.numpy()
            yield WeightsBlock(
                shared.version, number, count, array, shared.blocks[number], checksum_of(array)
            )


class IpcReceiver:
    """Implements `Receiver`: the learner's memory as it is, with every block checked; of versions elsewhere the store's."""

    def __init__(
        self,
        store: Store,
        place: str,
        lends: Lends = never,
        device: torch.device = HOST,
    ):
        """`place`, `lends`: see `StoreReceiver`; `device`: that of the engine."""
        self._store, self._place, self._device = store, place, device
        self._from_store = StoreReceiver(store, place, lends)

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, Tensor]:
        """See `Receiver.receive`. Tensors are on the learner's device, in memory that stays until none of them is left.

        Raises ModelError too where it is out of reach.
        """
        if publication.way != "ipc":
            return self._from_store.receive(publication, timeout)
        deadline = time.monotonic() + timeout
        (shared,) = take_blocks(self._store, publication, self._place, timeout)
        try:
            return _checked(shared, self._mapped(shared, deadline - time.monotonic()))
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self._place}: the learner has not lent weights of version {shared.version} within weightSync.timeout "
                f"({timeout:.0f} s); it stands still, or its node has too much to do"
            ) from None
        except (NotLent, OSError, RuntimeError) as error:
            if publication.whole is not None:
                return self._from_store.receive(publication.whole, max(0.0, deadline - time.monotonic()))
            raise ModelError(
                f"{self._place}: weights of version {shared.version} are in the learner's memory, out of reach "
                f"({first_line(error)}); set weightSync.transport: objectStore"
            ) from error

    def _mapped(self, shared: SharedVersion, seconds: float) -> Tensor:
        if shared.device not in (HOST.type, _name(self._device)):
            raise NotLent(f"which is that of another device, {shared.device}")
        end, file = lease(shared.desk, shared.number, seconds)
        try:
            if file is not None:
                return map_host(file, shared.size, end)
            return map_cuda(shared.handle, shared.size, self._device, end)
        except BaseException:
            end()
            raise


def _checked(shared: SharedVersion, memory: Tensor) -> Tensors:
    """The tensors where they lie. Raises ModelError: not the bytes that were published; RuntimeError of the device."""
    blocks = list(_cut(memory, shared.blocks))
    for number, (found, sent) in enumerate(zip(checksums(blocks), shared.checksums, strict=True)):
        if found != sent:
            raise damaged(shared.version, number, len(blocks), str(found), str(sent))
    return Tensors([(_as_one(shared.blocks), memory)])


def checksums(blocks: Sequence[Tensor]) -> list[int]:
    """Of blocks of bytes on one device, made there: no number of theirs passes through the host."""
    if all(block.device.type == HOST.type for block in blocks):
        return [checksum_of(block.numpy()) for block in blocks]
    sums: list[int] = torch.stack([sum_on_device(block) for block in blocks]).tolist()
    return sums


def sum_on_device(block: Tensor) -> Tensor:
    """int64 []: a sum over a block of bytes, a multiple of 64 of them, with another odd factor for each eight bytes.

    Where one was changed the sum is another one: odd factors lose no bit. Where several were, only by chance not.
    """
    words = block.view(torch.int64)
    factors = torch.arange(1, words.numel() + 1, device=block.device) * _EVEN + 1
    return (words * factors).sum()


def _as_one(blocks: Sequence[Index]) -> Index:
    """Where tensors are in all of the memory; the pieces of one lie there without a gap."""
    found: dict[str, Place] = {}
    first = 0
    for index in blocks:
        for name, place in index.items():
            begun = found.get(name)
            found[name] = (
                place._replace(offset=first + place.offset)
                if begun is None
                else begun._replace(size=begun.size + place.size)
            )
        first += end_of(index)
    return found


def _name(device: torch.device) -> str:
    return HOST.type if device.type == HOST.type else uuid_of(device)


def _cut(memory: Tensor, blocks: Sequence[Index]) -> Iterator[Tensor]:
    """Each block's bytes."""
    first = 0
    for index in blocks:
        last = first + end_of(index)
        yield memory[first:last]
        first = last
