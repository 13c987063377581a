"""Weights in the learner's memory: who has asked for a version reads that one, whole and checked, as long as it likes."""

from __future__ import annotations

import ctypes
import gc
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kept_blocks import KeptBlocks

from rl_api.errors import DeadlineExceeded, ModelError
from rl_trainer.weights.source import LazyTensor, TensorSource, source_of
from rl_trainer.weights.transports import cuda_memory, ipc, ipc_desk
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.create import create_publisher, create_receiver
from rl_trainer.weights.transports.ipc import IpcPublisher, IpcReceiver, sum_on_device
from rl_trainer.weights.transports.publication import Publication

SECONDS = 30.0


def tensors(version: int) -> dict[str, torch.Tensor]:
    """Of that version; one is larger than a block."""
    return {
        "large": torch.arange(2000.0).view(4, 500) + version,
        "half": torch.full((30,), version).to(torch.bfloat16),
        "none": torch.empty(0, 3),
    }


def offer(version: int, device: str = "cpu") -> Offer:
    parts = {name: LazyTensor.of(value) for name, value in tensors(version).items()}
    return Offer(lambda: source_of(parts), device=torch.device(device))


def is_version(found: Any, version: int) -> bool:
    wanted = tensors(version)
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


class World:
    """A learner, and its samplers' store."""

    def __init__(self, *, others: bool = False):
        self.store = KeptBlocks()
        self.publisher = IpcPublisher(self.store, 0, limit=256, others=others)
        self.published: dict[int, Publication] = {}

    def publish(self, version: int) -> str:
        """The way that it goes."""
        found = self.publisher.publish(offer(version), version)
        assert found is not None
        self.published[version] = found
        return found.way

    def receive(self, version: int, receiver: IpcReceiver | None = None) -> Any:
        found = (receiver or IpcReceiver(self.store, "sampler 3")).receive(self.published[version], SECONDS)
        assert is_version(found, version)
        return found

    def forget(self, version: int) -> None:
        """Nobody has the publication any more."""
        for handle in self.published.pop(version).blocks:
            self.store.blocks[handle] = None

    @property
    def there(self) -> list[int]:
        """Versions in the learner's memory, by how often was published."""
        assert self.publisher._desk is not None
        with self.publisher._desk._lock:  # what is given back is so before it is left
            return [*self.publisher._desk._versions]

    def comes_to(self, there: list[int]) -> bool:
        """Whether these alone are left: the desk's thread looks now and then."""
        gc.collect()
        end = time.monotonic() + SECONDS
        while self.there != there and time.monotonic() < end:
            time.sleep(0.01)
        return self.there == there


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


def test_without_room_on_the_device_a_version_goes_through_the_store(monkeypatch: pytest.MonkeyPatch):
    def none(size: int) -> None:
        raise MemoryError

    world = World()
    with monkeypatch.context() as patched:
        patched.setattr(ipc, "HostMemory", none)
        assert world.publish(4) == "objectStore"
    world.receive(4)
    assert world.publish(5) == "ipc"


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


class Driver:
    """CUDA's, as far as it is asked, on memory of the host: in what order, and with what."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.calls: list[str] = []
        self.full = 0  # so many more times there is no room

    def alloc(self, address: Any, size: int) -> int:
        self.calls.append("alloc")
        if self.full:
            self.full -= 1
            return 2
        made = ctypes.create_string_buffer(size)
        address[0] = ctypes.addressof(made)
        self.memory[address[0]] = made
        return 0

    def free(self, address: int) -> int:
        self.calls.append("free")
        return 0 if self.memory.pop(address, None) is not None else 1

    def handle(self, handle: Any, address: int) -> int:
        ctypes.memmove(handle, address.to_bytes(8, "little") + bytes(range(56)), 64)
        return 0

    def open(self, address: Any, handle: cuda_memory._Handle, flags: int) -> int:
        self.calls.append("open")
        given = bytes(handle.reserved)
        if given[8:] != bytes(range(56)) or flags != 1:
            return 1
        address[0] = int.from_bytes(given[:8], "little")
        return 0

    def shut(self, address: int) -> int:
        self.calls.append("close")
        return 0

    def library(self) -> SimpleNamespace:
        """Called with C's types, as the real one is."""
        pointer, number, size = ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_size_t
        handle = cuda_memory._Handle

        def c(function: Callable[..., int], *kinds: Any) -> Any:
            return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(function)

        return SimpleNamespace(
            cuMemAlloc_v2=c(self.alloc, pointer, size),
            cuMemFree_v2=c(self.free, number),
            cuIpcGetMemHandle=c(self.handle, ctypes.POINTER(handle), number),
            cuIpcOpenMemHandle_v2=c(self.open, pointer, handle, ctypes.c_uint),
            cuIpcCloseMemHandle=c(self.shut, number),
            cuGetErrorString=lambda code, text: 0,
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    library = made.library()

    def as_tensor(found: Any, device: torch.device) -> torch.Tensor:
        (size,), (address, _) = (found.__cuda_array_interface__[name] for name in ("shape", "data"))
        memory = (ctypes.c_ubyte * size).from_address(address)
        memory.keeps = found
        return torch.frombuffer(memory, dtype=torch.uint8)

    monkeypatch.setattr(cuda_memory, "_driver", lambda: library)
    monkeypatch.setattr(cuda_memory.torch, "as_tensor", as_tensor)
    monkeypatch.setattr(cuda_memory.torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(ipc, "uuid_of", lambda device: "GPU-7")
    return made


def test_memory_of_a_gpu_is_mapped_by_its_handle_and_freed_after_its_readers(driver: Driver):
    """The driver is not CUDA's: what it does no test here has seen."""
    world = World()
    published = world.publisher.publish(offer(0, "cuda"), 0)
    assert published is not None
    receiver = create_receiver("ipc", world.store, place="sampler 3", device="cuda")
    found = receiver.receive(published, SECONDS)
    assert is_version(found, 0)
    assert world.publisher.publish(offer(1, "cuda"), 1) is not None
    world.store.blocks[published.blocks[0]] = None
    time.sleep(0.1)
    assert driver.calls == ["alloc", "open", "alloc"]
    del found
    assert world.comes_to([2])
    assert driver.calls == ["alloc", "open", "alloc", "close", "free"]
    with pytest.raises(ModelError, match="that of another device, GPU-7"):
        create_receiver("ipc", world.store, place="sampler 3").receive(Publication(1, "ipc", [1]), SECONDS)


def test_a_gpu_without_room_is_asked_again_once_torch_has_given_back_what_it_kept(driver: Driver):
    world = World()
    driver.full = 1
    first = world.publisher.publish(offer(0, "cuda"), 0)
    driver.full = 2
    second = world.publisher.publish(offer(1, "cuda"), 1)
    assert first is not None
    assert second is not None
    assert (first.way, second.way) == ("ipc", "objectStore")
