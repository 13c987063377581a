"""The desk of readers, where the system is short of something or a device takes its time."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl_trainer.weights.transports import ipc_desk
from rl_trainer.weights.transports.ipc_desk import LendingDesk, NotLent, lease


class Slow:
    """Memory that takes long to give back."""

    handle = b""
    file = None
    tensor: torch.Tensor | None = None

    def __init__(self) -> None:
        self.asked, self.may_end = threading.Event(), threading.Event()

    def close(self) -> None:
        self.asked.set()
        assert self.may_end.wait(30)


def test_a_user_above_the_numbers_with_a_sign_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    user = 2**31 + 5
    monkeypatch.setattr(os, "getuid", lambda: user)

    def asked(level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.pack("iII", 7, user, user)

    reader: Any = SimpleNamespace(getsockopt=asked)
    assert ipc_desk._is_ours(reader)


@pytest.mark.parametrize(("number", "pauses"), [(errno.EMFILE, 1), (errno.EAGAIN, 0)])
def test_without_descriptors_the_desk_waits_before_it_looks_again(
    monkeypatch: pytest.MonkeyPatch, number: int, pauses: int
) -> None:
    slept: list[float] = []

    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ipc_desk, "time", SimpleNamespace(sleep=slept.append), raising=False)
    desk: Any = SimpleNamespace(_door=SimpleNamespace(accept=refuse))
    LendingDesk._let_in(desk)
    assert len(slept) == pauses
    assert all(0.001 <= one <= 1 for one in slept)


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A door before which as many wait as may."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(f"\0rltrain-weights-full-{os.getpid()}")
    door.listen(0)
    waiting = []
    while True:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.setblocking(False)
        waiting.append(one)
        try:
            one.connect(door.getsockname())
        except BlockingIOError:
            break
    yield door
    for one in (door, *waiting):
        one.close()


def test_who_finds_others_before_the_door_waits_with_them(full: socket.socket) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        lease(full.getsockname().decode(), 1, 0.3)
    assert 0.2 < time.monotonic() - started < 20

    def let_in() -> None:
        time.sleep(0.2)
        for _ in range(2):  # who came before has said nothing
            reader, _ = full.accept()
        assert reader.recv(8) == (7).to_bytes(8, "big")
        reader.send(b"-")
        reader.close()

    desk = threading.Thread(target=let_in)
    desk.start()
    with pytest.raises(NotLent, match="has it no more"):
        lease(full.getsockname().decode(), 7, 30)
    desk.join(30)


def test_a_version_is_there_until_its_memory_is_given_back_and_meanwhile_others_are_lent() -> None:
    desk = LendingDesk()
    slow, other = Slow(), Slow()
    desk.add(1, slow, lambda: False)
    desk.add(2, other, lambda: True)
    # The desk's own thread may be the one who gives it back, so another one asks for the number of what is left.
    left: list[int] = []
    dropping = threading.Thread(target=lambda: left.append(desk.drop_before(2)))
    dropping.start()
    assert slow.asked.wait(30)
    assert [*desk._versions] == [1, 2], "it still takes its room"
    assert desk._lock.acquire(timeout=10), "nobody waits for the device"
    desk._lock.release()
    assert not left
    slow.may_end.set()
    dropping.join(30)
    assert left == [1]
    end, file = lease(desk.address, 2, 30)
    assert file is None
    end()


def test_what_is_being_given_back_is_lent_to_nobody() -> None:
    desk = LendingDesk()
    slow = Slow()
    desk.add(1, slow, lambda: False)
    dropping = threading.Thread(target=desk.drop_before, args=[2])
    dropping.start()
    assert slow.asked.wait(30)
    with pytest.raises(NotLent, match="has it no more"):
        lease(desk.address, 1, 30)
    slow.may_end.set()
    dropping.join(30)


def test_memory_that_a_device_has_not_given_back_is_asked_for_again() -> None:
    desk = LendingDesk()
    failures = [RuntimeError("CUDA has not given memory given back")]

    def close() -> None:
        if failures:
            raise failures.pop()

    memory: Any = SimpleNamespace(handle=b"", file=None, tensor=None, close=close)
    desk.add(1, memory, lambda: False)
    with pytest.raises(RuntimeError, match="given back"):
        desk.drop_before(2)
    assert [*desk._versions] == [1]
    assert desk.drop_before(2) == 0
