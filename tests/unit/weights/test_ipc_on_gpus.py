"""Weights in the memory of a learner's GPU, with a driver that is not CUDA's: what that does no test here has seen."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ipc_world import SECONDS, World, is_version, offer

from rl_api.errors import ModelError
from rl_trainer.weights.transports import cuda_memory, ipc, ipc_desk
from rl_trainer.weights.transports.create import create_receiver
from rl_trainer.weights.transports.publication import Publication


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_desk, "LOOK_SECONDS", 0.02)


class Driver:
    """CUDA's, as far as it is asked, on memory of the host: in what order, and with what."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.calls: list[str] = []
        self.sizes: list[int] = []
        self.full = 0  # so many more times there is no room
        self.left = 1 << 40  # bytes that are free after all
        self.shares = True

    def alloc(self, address: Any, size: int) -> int:
        self.calls.append("alloc")
        if self.full:
            self.full -= 1
            return 2
        self.sizes.append(size)
        made = ctypes.create_string_buffer(size)
        address[0] = ctypes.addressof(made)
        self.memory[address[0]] = made
        return 0

    def free(self, address: int) -> int:
        self.calls.append("free")
        return 0 if self.memory.pop(address, None) is not None else 1

    def handle(self, handle: Any, address: int) -> int:
        if not self.shares:
            return 801
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


def way_of(world: World, version: int) -> str:
    found = world.publisher.publish(offer(version, "cuda"), version)
    assert found is not None
    return found.way


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
    monkeypatch.setattr(cuda_memory.torch.cuda, "mem_get_info", lambda device: (made.left, 1 << 40))
    monkeypatch.setattr(ipc, "uuid_of", lambda device: "GPU-7")
    return made


def test_memory_of_a_gpu_is_mapped_by_its_handle_and_freed_after_its_readers(driver: Driver):
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


def test_without_room_on_the_gpu_a_version_goes_through_the_store_and_the_learner_keeps_its_own(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    def given_back() -> None:
        raise AssertionError("what torch has kept for the learner's next step is not a version's")

    monkeypatch.setattr(cuda_memory.torch.cuda, "empty_cache", given_back)
    world = World()
    driver.full = 1
    assert way_of(world, 0) == "objectStore"
    driver.left = cuda_memory.MARGIN - 1
    assert way_of(world, 1) == "objectStore"
    assert driver.calls == ["alloc", "alloc", "free"]
    driver.left = cuda_memory.MARGIN
    assert way_of(world, 2) == "ipc"


def test_memory_of_a_gpu_is_shared_in_whole_blocks_that_hold_nothing_else(driver: Driver):
    made = [cuda_memory.CudaMemory(size, torch.device("cuda")) for size in (1, 2 << 20, (2 << 20) + 1)]
    assert driver.sizes == [2 << 20, 2 << 20, 4 << 20]
    tensors = [one.tensor for one in made]
    assert [one.numel() for one in tensors if one is not None] == [1, 2 << 20, (2 << 20) + 1]


def test_of_a_gpu_that_cannot_share_all_versions_go_through_the_store_and_that_is_said_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    world = World()
    driver.shares = False
    assert [way_of(world, version) for version in (0, 1)] == ["objectStore"] * 2
    assert driver.calls == ["alloc", "free"] * 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "learner 0: weights of version 0 go through the object store, not by weightSync.transport: ipc"
    )
    assert "as its device cannot share memory (CUDA has not given a handle of memory" in line

    def missing() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda_memory, "_driver", missing)
    assert way_of(world, 2) == "objectStore"
    (line,) = capsys.readouterr().err.splitlines()
    assert "(libcuda.so.1: cannot open shared object file)" in line
