"""Messages over a socket, with somebody at the other end who does not keep to it."""

import socket
import struct
import threading

import pytest

from rl_trainer.tasks.channel import Channel, TooLongError


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one), other


def test_messages_arrive_whole_and_in_order(ends):
    here, raw = ends
    there = Channel(raw)
    large = bytes(range(256)) * 20_000
    sending = threading.Thread(target=lambda: [here.send(one, 30) for one in (b"", b"a", large)])
    sending.start()
    assert [there.receive(10**8, 30) for _ in range(3)] == [b"", b"a", large]
    sending.join(30)
    here.send(b"last")
    assert there.receive(10) == b"last"


@pytest.mark.parametrize("part", [b"", b"\x00\x00", struct.pack(">Q", 5) + b"half"])
def test_nobody_waits_for_a_message_that_does_not_come(ends, part):
    here, other = ends
    other.sendall(part)
    with pytest.raises(TimeoutError):
        here.receive(100, 0.1)


@pytest.mark.parametrize("part", [b"", b"\x00\x00", struct.pack(">Q", 5) + b"half"])
def test_the_end_of_the_other_side_is_heard(ends, part):
    here, other = ends
    other.sendall(part)
    other.close()
    with pytest.raises(EOFError):
        here.receive(100, 30)


def test_what_is_announced_too_long_is_not_read(ends):
    here, other = ends
    other.sendall(struct.pack(">Q", 10 * 2**30))
    with pytest.raises(TooLongError, match="found 10737418240 bytes, allowed: at most 100"):
        here.receive(100, 30)


def test_a_message_nobody_takes_has_a_deadline(ends):
    here, _ = ends
    with pytest.raises(TimeoutError):
        here.send(bytes(2**24), 0.1)


def test_the_last_moment_is_over_at_once(ends):
    with pytest.raises(TimeoutError):
        ends[0].receive(100, -1.0)
