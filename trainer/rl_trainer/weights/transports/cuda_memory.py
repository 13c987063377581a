"""Memory of a GPU that other processes with the same GPU can map: CUDA's driver, behind two classes.

Torch shares its tensors too (`torch.multiprocessing.reductions`), but counts, in a file of /dev/shm, who has still to map
and to drop each handle: a process that is killed in between keeps the memory for ever, and one that is killed with the file
leaves that behind. Here a reader is known by its connection, which ends with it (`ipc_desk.py`). Nor is it memory of torch's
allocator, which CUDA shares in whole segments only, and not at all with `expandable_segments`.

The project's tests have no GPU: they run all of the way but this, on memory of the host.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

# Bytes that stay free beside a version, for what learner and sampler take in the step that follows.
MARGIN: Final = 512 << 20
# What the driver shares is whole blocks of so many bytes, with whatever else lies in them.
_BLOCK: Final = 2 << 20
_OUT_OF_MEMORY: Final = 2
_LAZY_PEER_ACCESS: Final = 1  # the one flag that there is, and it must be given


class _Handle(ctypes.Structure):
    """CUDA's `CUipcMemHandle`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class _Bytes:
    """Memory at an address, as torch takes it from other libraries; it lives as long as tensors of it do."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
        }


class CudaMemory:
    """Memory of this process's, until `close`; `handle` is what others map it by.

    Attributes:
        tensor: uint8 [size].
        file: None, see `HostMemory`.
    """

    file: None = None

    def __init__(self, size: int, device: torch.device):
        """Raises MemoryError where the device has no room, RuntimeError where it cannot be shared."""
        self._device = device
        _enter(device)
        address = ctypes.c_uint64()
        # What torch keeps for the learner's next step stays the learner's.
        code = _driver().cuMemAlloc_v2(ctypes.byref(address), max(1, -(-size // _BLOCK)) * _BLOCK)
        if code == _OUT_OF_MEMORY:
            raise _no_room(size)
        _check(code, "memory")
        self._address = address
        try:
            if torch.cuda.mem_get_info(device)[0] < MARGIN:
                raise _no_room(size)
            handle = _Handle()
            _check(_driver().cuIpcGetMemHandle(ctypes.byref(handle), address), "a handle of memory")
            self.handle = bytes(handle.reserved)
            self.tensor: Tensor | None = torch.as_tensor(_Bytes(address.value, size), device=device)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives it back; nobody maps it any more, and nobody here uses the tensor. From any thread."""
        self.tensor = None
        _enter(self._device)
        _check(_driver().cuMemFree_v2(self._address), "memory given back")


def _no_room(size: int) -> MemoryError:
    return MemoryError(
        f"no memory of the GPU is left for them ({size / 1e9:.1f} GB and {MARGIN / 1e9:.1f} GB that stay free)"
    )


def map_cuda(handle: bytes, size: int, device: torch.device, ended: Callable[[], object]) -> Tensor:
    """The memory of another process, uint8 [size], to be read only; `ended` is called once no tensor of it is left, and what
    was begun with them on the device is over.

    Raises RuntimeError where it cannot be mapped.
    """
    _enter(device)
    address = ctypes.c_uint64()
    theirs = _Handle.from_buffer_copy(handle)
    code = _driver().cuIpcOpenMemHandle_v2(ctypes.byref(address), theirs, _LAZY_PEER_ACCESS)
    _check(code, "memory of another process")
    found = _Bytes(address.value, size)
    # At the end of the process the driver does it.
    weakref.finalize(found, _unmap, address, device, ended).atexit = False
    return torch.as_tensor(found, device=device)


def uuid_of(device: torch.device) -> str:
    """The name of a GPU that is the same in every process, whichever others these see."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _unmap(address: ctypes.c_uint64, device: torch.device, ended: Callable[[], object]) -> None:
    try:
        _enter(device)
        _driver().cuIpcCloseMemHandle(address)
    finally:
        ended()


def _enter(device: torch.device) -> None:
    """What was begun is over, and the device's context is this thread's, as the driver's calls want it."""
    torch.cuda.synchronize(device)


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        said = text.value.decode() if text.value else f"error {code}"
        raise RuntimeError(f"CUDA has not given {what}: {said}")


@cache
def _driver() -> Any:
    found = ctypes.CDLL("libcuda.so.1")
    address, handle = ctypes.c_uint64, _Handle
    found.cuMemAlloc_v2.argtypes = [ctypes.POINTER(address), ctypes.c_size_t]
    found.cuMemFree_v2.argtypes = [address]
    found.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(handle), address]
    found.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(address), handle, ctypes.c_uint]
    found.cuIpcCloseMemHandle.argtypes = [address]
    found.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return found
