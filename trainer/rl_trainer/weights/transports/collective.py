"""Weights by broadcast: one learner sends each block once, and the samplers pass it on among themselves.

What is sent are the blocks that are in the store already, for those who come later and for those whom a broadcast does not
reach. So the learner may train on while they are on their way, and a broadcast that fails costs time and nothing else.

A version is sent as a header (three numbers: version, bytes of the description, its CRC-32), the description of all blocks,
and the blocks. Versions are sent one after the other.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from rl_trainer.error_text import first_line
from rl_trainer.weights.payload import Place, Tensors, WeightsBlock, unpack_weights
from rl_trainer.weights.transports.base import Lends, Store, never
from rl_trainer.weights.transports.group import MeetingPoint, Seat, WeightGroup
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.object_store import StoreReceiver
from rl_trainer.weights.transports.publication import Publication

LEARNER = 0


class Broadcaster:
    """The learner's side: sends in a thread of its own, in the order in which it was asked to."""

    def __init__(self, store: Store, host: str):
        """`host`: this node's address for samplers."""
        self._store = store
        self.point = MeetingPoint(host)
        self._seat = Seat()
        self._sent: list[tuple[int, Future[str | None]]] = []  # whose end `failure` has not told yet
        self._asked: SimpleQueue[tuple[Publication, Invitation, Future[str | None]]] = SimpleQueue()
        # Not a pool's: a process that ends would wait for it.
        threading.Thread(target=self._work, name="broadcasts", daemon=True).start()

    def send(self, publication: Publication, invitation: Invitation) -> Future[str | None]:
        """Begins to send; returns at once. The result: why it has failed, None if it has not."""
        result: Future[str | None] = Future()
        self._sent.append((publication.version, result))
        self._asked.put((publication, invitation, result))
        return result

    def failure(self) -> str | None:
        """Why the last broadcast has failed on this side, of those that have ended since this was asked; None: it has not.

        From the thread that sends.
        """
        last = None
        while self._sent and self._sent[0][1].done():
            version, result = self._sent.pop(0)
            if (reason := result.result()) is None:
                last = None
            else:
                first, *_ = reason.splitlines()
                last = f"learner 0: weights of version {version} could not be broadcast by it ({first})"
        return last

    def _work(self) -> None:
        while True:
            publication, invitation, result = self._asked.get()
            result.set_result(self._send(publication, invitation))
            del publication, result  # or the store would keep the blocks until the next version

    def _send(self, publication: Publication, invitation: Invitation) -> str | None:
        try:
            group = self._seat.take(invitation, LEARNER, self.point)
            deadline = time.monotonic() + invitation.seconds
            heads = []
            for handle in publication.blocks:
                (block,) = self._store.get([handle], invitation.seconds)
                heads.append(_head(block))
                del block
            description = torch.frombuffer(bytearray(json.dumps(heads).encode()), dtype=torch.uint8)
            numbers = [publication.version, description.numel(), zlib.crc32(description.numpy().data)]
            group.broadcast(torch.tensor(numbers, dtype=torch.int64).view(torch.uint8), deadline)
            group.broadcast(description, deadline)
            for handle in publication.blocks:
                (block,) = self._store.get([handle], invitation.seconds)
                if block.block.size:
                    group.broadcast(_bytes_of(block.block), deadline)
                del block
        except Exception as error:  # gloo, NCCL and the store have no class in common
            self._seat.leave()
            return f"{type(error).__name__}: {error}"
        return None


class CollectiveReceiver:
    """Implements `Receiver`: a version that was broadcast if it has arrived, else the same from the store."""

    def __init__(self, store: Store, place: str, lends: Lends = never):
        """`place`, `lends`: see `StoreReceiver`."""
        self._from_store = StoreReceiver(store, place, lends)
        self._place = place
        self._seat = Seat()
        self._one_at_a_time = threading.Lock()
        self._changed = threading.Condition()
        self._expected: set[int] = set()  # versions under way to here
        self._arrived: tuple[int, Tensors, int] | None = None
        self.broadcast_bytes = 0
        """Bytes of weights that came by broadcasts, of versions that were received; for whoever counts them to take off."""

    def join(self, invitation: Invitation, rank: int) -> str | None:
        """Takes part in a broadcast as member `rank` of its group; from any thread, while `receive` goes on in another.

        Returns why it has failed, None if it has not; at the latest twice `invitation.seconds` after the broadcast before.
        """
        with self._changed:
            self._expected.add(invitation.version)
        try:
            with self._one_at_a_time:
                tensors, size = self._received(invitation, rank)
        except Exception as error:  # gloo and NCCL have no class in common
            return f"{self._place}: weights of version {invitation.version} were not broadcast to it ({first_line(error)})"
        else:
            with self._changed:
                self._arrived = invitation.version, tensors, size
        finally:
            with self._changed:
                self._expected.discard(invitation.version)
                self._changed.notify_all()
        return None

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, Tensor]:
        """See `Receiver.receive`; `timeout` for the broadcast, if one is under way, and again for the store."""
        version = publication.version
        with self._changed:
            self._changed.wait_for(lambda: version not in self._expected, timeout)
            arrived = self._arrived
            if arrived is not None and arrived[0] <= version:
                self._arrived = None
        if arrived is not None and arrived[0] == version:
            self.broadcast_bytes += arrived[2]
            return arrived[1]
        return self._from_store.receive(publication, timeout)

    def _received(self, invitation: Invitation, rank: int) -> tuple[Tensors, int]:
        try:
            blocks = _receive_blocks(self._seat.take(invitation, rank), invitation)
            return unpack_weights(blocks), sum(block.block.nbytes for block in blocks)
        except Exception:
            self._seat.leave()  # or others would wait for what this one does not pass on
            raise


def _receive_blocks(group: WeightGroup, invitation: Invitation) -> list[WeightsBlock]:
    deadline = time.monotonic() + invitation.seconds
    header = torch.zeros(24, dtype=torch.uint8)
    group.broadcast(header, deadline)
    version, length, checksum = header.view(torch.int64).tolist()
    if version != invitation.version:
        raise ValueError(f"version {version} came, {invitation.version} was to come")
    description = torch.zeros(length, dtype=torch.uint8)
    group.broadcast(description, deadline)
    if zlib.crc32(description.numpy().data) != checksum:
        raise ValueError("the description of its blocks was damaged on the way")
    blocks = []
    for number, size, count, index, crc in json.loads(description.numpy().tobytes()):
        data = torch.empty(size, dtype=torch.uint8)
        if size:
            group.broadcast(data, deadline)
        places = {name: Place(one[0], tuple(one[1]), *one[2:]) for name, one in index.items()}
        blocks.append(WeightsBlock(version, number, count, data.numpy(), places, crc))
    return blocks


def _head(block: WeightsBlock) -> tuple[int, int, int, Mapping[str, Place], int]:
    """All of a block but its bytes."""
    return block.number, int(block.block.size), block.blocks, dict(block.index), block.checksum


def _bytes_of(array: np.ndarray) -> Tensor:
    """A tensor on the store's memory, which is only read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(array, dtype=torch.uint8)
