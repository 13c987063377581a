"""Who reads which version of the weights: a desk in the learner's process, to which readers of the same host connect.

A connection is a reader's for as long as it has the version's memory mapped: it ends with the process, however that ends, so
that nobody has to be believed, and a reader that is killed keeps nothing. What is given out is where the memory is (on the
host its file); which version is wanted at all, others say.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from torch import Tensor

# How often it looks for versions that nobody wants any more.
LOOK_SECONDS: Final = 1.0
# How long it leaves those waiting who cannot be let in, and they themselves, where too many wait.
_PAUSE_SECONDS: Final = 0.02
_HERE, _GONE = b"+", b"-"
_NUMBER: Final = struct.Struct("!Q")
_CREDENTIALS: Final = struct.Struct("iII")  # process, user and group


class Memory(Protocol):
    """What a version lies in: `HostMemory` or `CudaMemory`."""

    handle: bytes
    tensor: Tensor | None

    @property
    def file(self) -> int | None:
        """Descriptor that a reader gets; None: the handle is enough."""
        ...

    def close(self) -> None:
        """Gives it back."""
        ...


@dataclass
class _Version:
    memory: Memory
    wanted: Callable[[], bool]
    readers: set[socket.socket] = field(default_factory=set)
    ends: bool = False
    """Its memory is being given back: it is lent to nobody, and still takes its room."""


class LendingDesk:
    """Versions by number, the later the higher; a thread of its own answers readers, another one gives memory back."""

    def __init__(self) -> None:
        # Abstract, so that no file is left; of this user alone, as `_ask` looks who comes.
        self.address = f"\0rltrain-weights-{secrets.token_hex(16)}"
        self._lock = threading.Lock()
        # Held while memory is given back, for which a device may take its time: readers are answered meanwhile.
        self._dropping = threading.Lock()
        self._left = threading.Event()  # a reader has, since it was looked last
        self._versions: dict[int, _Version] = {}
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(self.address)
        self._door.listen(128)
        self._door.setblocking(False)
        self._selector.register(self._door, selectors.EVENT_READ)
        # Not a pool's: a process that ends would wait for it.
        threading.Thread(target=self._serve, name="readers of weights", daemon=True).start()
        threading.Thread(target=self._look, name="weights that nobody wants", daemon=True).start()

    def add(self, number: int, memory: Memory, wanted: Callable[[], bool]) -> None:
        """From now on a version can be read, until it is neither `wanted` nor read, and a later one is told of."""
        with self._lock:
            self._versions[number] = _Version(memory, wanted)

    def drop_before(self, number: int) -> int:
        """Gives back what nobody reads or wants of the versions before `number`; how many of all are left.

        Raises what memory does that is not given back; that is tried again with the next call.
        """
        with self._dropping:
            with self._lock:
                ended = {
                    one: version
                    for one, version in self._versions.items()
                    if one < number and not version.readers and (version.ends or not version.wanted())
                }
                for version in ended.values():
                    version.ends = True
            for one, version in ended.items():
                version.memory.close()
                with self._lock:
                    del self._versions[one]
            with self._lock:
                return len(self._versions)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._door:
                    self._let_in()
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)

    def _look(self) -> None:
        while True:
            self._left.wait(LOOK_SECONDS)
            self._left.clear()
            with self._lock:
                last = max(self._versions, default=0)
            with suppress(Exception):  # of a device, which whoever publishes next will be told of
                self.drop_before(last)

    def _let_in(self) -> None:
        try:
            reader, _ = self._door.accept()
        except (BlockingIOError, ConnectionAbortedError):  # gone again
            return
        except OSError:  # no descriptors are left: whoever it is stands before the door still
            time.sleep(_PAUSE_SECONDS)
            return
        reader.setblocking(False)
        self._selector.register(reader, selectors.EVENT_READ)

    def _hear(self, reader: socket.socket) -> None:
        """What a reader asks for; or its end."""
        try:
            asked = reader.recv(_NUMBER.size) if _is_ours(reader) else b""
        except OSError:
            asked = b""
        if len(asked) == _NUMBER.size and self._lend(reader, *_NUMBER.unpack(asked)):
            return
        with self._lock:
            for version in self._versions.values():
                version.readers.discard(reader)
        self._selector.unregister(reader)
        reader.close()
        self._left.set()

    def _lend(self, reader: socket.socket, number: int) -> bool:
        """Whether the reader has been answered."""
        with self._lock:
            version = self._versions.get(number)
            if version is not None and version.ends:
                version = None
            if version is not None:
                version.readers.add(reader)
        file = version.memory.file if version is not None else None
        try:
            socket.send_fds(reader, [_GONE if version is None else _HERE], [] if file is None else [file])
        except OSError:
            return False
        return True


class NotLent(Exception):
    """A version cannot be read here; the text says why, as part of a sentence."""


def lease(address: str, number: int, seconds: float) -> tuple[Callable[[], None], int | None]:
    """What ends the connection that keeps a version where it is, and the descriptor of its file, if it has one.

    Raises TimeoutError after `seconds`; NotLent: there is no such desk on this host, or it has that version no more.
    """
    deadline = time.monotonic() + seconds
    reader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _connect(reader, address, deadline)
        reader.settimeout(max(0.001, deadline - time.monotonic()))
        reader.send(_NUMBER.pack(number))
        said, files, _, _ = socket.recv_fds(reader, 1, 1)
    except TimeoutError:
        reader.close()
        raise
    except OSError as error:
        reader.close()
        raise NotLent(
            f"the learner's process is not on this host, or has ended ({error.strerror})"
        ) from error
    if said != _HERE:
        reader.close()
        raise NotLent("the learner's process has it no more")
    return partial(_leave, reader), files[0] if files else None


def _connect(reader: socket.socket, address: str, deadline: float) -> None:
    """Raises TimeoutError after `deadline`. A socket of this kind does not wait where too many do, but is refused."""
    while True:
        reader.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            return reader.connect(address)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError from None
            time.sleep(_PAUSE_SECONDS)


def _leave(reader: socket.socket) -> None:
    with suppress(OSError):  # the learner's process has ended
        reader.shutdown(socket.SHUT_RDWR)  # a child that was forked may have it as well
    reader.close()


def _is_ours(reader: socket.socket) -> bool:
    """Whether the process of a connection is of this user."""
    _, user, _ = _CREDENTIALS.unpack(
        reader.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return bool(user == os.getuid())
