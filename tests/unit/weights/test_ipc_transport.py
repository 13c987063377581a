"""Weights in the learner's memory: who has asked for a version reads that one, whole and checked, as long as it likes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ipc_world import World, offer, tensors
from kept_blocks import KeptBlocks

from rl_api.errors import DeadlineExceeded, ModelError
from rl_trainer.weights.free_memory import MARGIN
from rl_trainer.weights.payload import end_of, parts_of
from rl_trainer.weights.source import TensorSource
from rl_trainer.weights.transports import host_memory, ipc, ipc_desk
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.create import create_publisher, create_receiver
from rl_trainer.weights.transports.ipc import sum_on_device


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_desk, "LOOK_SECONDS", 0.02)


def test_what_is_received_is_what_was_published_and_nothing_of_it_is_in_the_store():
    world = World()
    assert world.publish(4) == "ipc"
    assert world.published[4].whole is None
    (shared,) = world.store.blocks.values()
    assert len(shared.blocks) > 8
    assert world.store.bytes < shared.size / 2
    first, second = world.receive(4), world.receive(4)
    assert first["half"].data_ptr() != second["half"].data_ptr(), "each has mapped it"


def test_other_ranks_make_the_tensors_with_the_first_and_publish_nothing():
    made: list[str] = []

    def items() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in tensors(4).items():
            made.append(name)
            yield name, value

    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in tensors(4).items()}
    publisher = create_publisher("ipc", KeptBlocks(), rank=1)
    assert publisher.publish(Offer(lambda: TensorSource(shapes, items)), 4) is None
    assert made == list(shapes)


def test_a_version_stays_while_it_is_read_or_wanted_and_the_device_has_two_at_most():
    world = World()
    world.publish(0)
    old = world.receive(0)
    part = old["half"]
    del old
    assert world.publish(1) == "ipc"
    assert world.publish(2) == "objectStore", "the first may still be asked for, and the second too"
    world.receive(2)
    world.forget(1)
    assert world.publish(3) == "ipc"
    assert world.there == [1, 4]
    world.forget(0)
    assert world.publish(4) == "objectStore", "the first is not wanted, but read"
    assert torch.equal(part, tensors(0)["half"])
    del part
    assert world.comes_to([4])
    world.receive(3)
    world.forget(3)
    assert world.publish(5) == "ipc"
    assert world.comes_to([6])


def test_what_is_read_is_not_given_back_before_all_tensors_are_gone():
    world = World()
    world.publish(0)
    several = [world.receive(0) for _ in range(3)]
    part = several[0]["half"]
    world.publish(1)
    world.forget(0)
    several.clear()
    time.sleep(0.1)
    assert world.there == [1, 2]
    del part
    assert world.comes_to([2])


def test_whom_the_memory_does_not_reach_has_the_store():
    world = World(others=True)
    assert world.publish(4) == "ipc"
    whole = world.published[4].whole
    assert whole is not None
    assert whole.way == "objectStore"
    handle = world.published[4].blocks[0]
    shared = world.store.blocks[handle]
    for elsewhere in ({"device": "GPU-1"}, {"desk": "\0nobody-is-here"}, {"number": 7}):
        world.store.blocks[handle] = replace(shared, **elsewhere)
        world.receive(4)
    world.published[4] = replace(world.published[4], whole=None)
    for elsewhere, reason in (
        ({"device": "GPU-1"}, "which is that of another device, GPU-1"),
        ({"desk": "\0nobody-is-here"}, "is not on this host, or has ended (Connection refused)"),
        ({"number": 7}, "the learner's process has it no more"),
    ):
        world.store.blocks[handle] = replace(shared, **elsewhere)
        with pytest.raises(ModelError) as caught:
            world.receive(4)
        said = str(caught.value)
        assert said.startswith("sampler 3: weights of version 4 are in the learner's memory, out of reach (")
        assert reason in said
        assert said.endswith("); set weightSync.transport: objectStore")


def test_a_learner_that_stands_still_is_named_after_the_deadline():
    world = World()
    world.publish(4)
    (handle,) = world.published[4].blocks
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind("\0rltrain-weights-silent")
        silent.listen()
        world.store.blocks[handle] = replace(world.store.blocks[handle], desk="\0rltrain-weights-silent")
        receiver = create_receiver("ipc", world.store, place="sampler 3 on node 10.0.0.7")
        with pytest.raises(
            DeadlineExceeded,
            match=r"^sampler 3 on node 10\.0\.0\.7: the learner has not lent weights of version 4 within "
            r"weightSync\.timeout \(0 s\); it stands still",
        ):
            receiver.receive(world.published[4], 0.1)


def test_damage_is_found_whichever_block_it_is_in():
    world = World()
    world.publish(4)
    desk = world.publisher._desk
    assert desk is not None
    memory = desk._versions[1].memory.tensor
    assert memory is not None
    for byte in (0, 300, memory.numel() - 64):
        memory[byte] ^= 1
        with pytest.raises(ModelError, match=r"weights of version 4, block \d+ of \d+: checksum"):
            world.receive(4)
        memory[byte] ^= 1
    world.receive(4)


def test_what_fails_half_way_is_published_to_nobody_and_leaves_no_memory(monkeypatch: pytest.MonkeyPatch):
    world = World()
    closed: list[int] = []
    close = ipc.HostMemory.close
    monkeypatch.setattr(ipc.HostMemory, "close", lambda self: closed.append(self.file) or close(self))
    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in tensors(4).items()}

    def items() -> Iterator[tuple[str, torch.Tensor]]:
        yield "large", tensors(4)["large"]
        raise RuntimeError("a rank has died")

    with pytest.raises(RuntimeError, match="a rank has died"):
        world.publisher.publish(Offer(lambda: TensorSource(shapes, items)), 4)
    assert len(closed) == 1
    assert world.there == []
    assert world.publish(4) == "ipc"
    world.receive(4)


def test_without_room_on_the_host_a_version_goes_through_the_store_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    world = World()
    size = sum(map(end_of, parts_of(offer(4).as_laid(), 256)))
    with monkeypatch.context() as patched:
        patched.setattr(host_memory, "free_memory", lambda: size + MARGIN - 1)
        assert [world.publish(version) for version in (4, 5)] == ["objectStore"] * 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "learner 0: weights of version 4 go through the object store, not by weightSync.transport: ipc, as no memory of the "
        "host is left for them (0.0 GB and 0.3 GB that stay free); so do later ones as long as that is so"
    )
    world.receive(5)
    monkeypatch.setattr(host_memory, "free_memory", lambda: size + MARGIN)
    assert world.publish(6) == "ipc"
    assert world.publish(7) == "ipc"
    assert [world.publish(version) for version in (8, 9)] == ["objectStore"] * 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "version 8 go" in line
    assert "as samplers have or may still ask for the 2 versions before" in line


@pytest.mark.parametrize("others", [True, False])
def test_a_device_without_room_for_the_check_has_the_store_or_a_sentence(
    monkeypatch: pytest.MonkeyPatch, *, others: bool
):
    world = World(others=others)
    world.publish(4)
    checked: list[int] = []

    def full(blocks: Any) -> list[int]:
        checked.append(len(blocks))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 48.00 MiB")

    monkeypatch.setattr(ipc, "checksums", full)
    if others:
        world.receive(4)
    else:
        with pytest.raises(
            ModelError, match=r"out of memory.* 48\.00 MiB\); set weightSync\.transport: objectStore$"
        ):
            world.receive(4)
    assert checked


def test_a_tensor_of_several_blocks_is_read_where_it_lies():
    world = World()
    world.publish(4)
    assert len(next(iter(world.store.blocks.values())).blocks) > 8
    found = world.receive(4)
    assert len({found[name].untyped_storage().data_ptr() for name in ("large", "half")}) == 1
    assert found["large"].data_ptr() == found["large"].data_ptr()


def test_blocks_for_others_are_put_by_another_thread_while_the_next_is_made():
    world = World(others=True)
    threads: set[str] = set()
    put = world.store.put

    def noted(block: Any) -> int:
        threads.add(threading.current_thread().name)
        return put(block)

    world.store.put = noted
    world.publish(4)
    assert any(name.startswith("weights to the store") for name in threads)
    whole = world.published[4].whole
    assert whole is not None
    world.published[4] = whole
    world.receive(4)


@given(st.binary(min_size=64, max_size=512), st.data())
def test_a_sum_on_a_device_finds_what_was_changed_or_exchanged(data: bytes, draw: Any):
    block = torch.tensor(list(data[: len(data) // 64 * 64]), dtype=torch.uint8)
    before = int(sum_on_device(block))
    byte, bit = draw.draw(st.integers(0, len(block) - 1)), draw.draw(st.integers(0, 7))
    block[byte] ^= 1 << bit
    assert int(sum_on_device(block)) != before
    block[byte] ^= 1 << bit
    assert int(sum_on_device(block)) == before
    words = block.view(torch.int64)
    if words[0] != words[-1]:
        words[0], words[-1] = int(words[-1]), int(words[0])
        assert int(sum_on_device(block)) != before
