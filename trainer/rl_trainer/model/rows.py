"""Parameters of which this process holds some rows only, as FSDP2 divides them, and whole ones, behind the same functions.

A divided parameter is a DTensor whose first dimension is cut over the last dimension of its mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Rows(Protocol):
    """What rows are read from: a tensor, or one in a file of which only the rows asked for are read."""

    @property
    def shape(self) -> Any:
        """Sizes of the whole tensor."""
        ...

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Rows `rows.start` up to `rows.stop` of it."""
        ...


def is_divided(tensor: Tensor) -> bool:
    """Whether this process holds some rows of `tensor` only."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The rows that this process holds, detached and in the same memory; of a tensor that is not divided all."""
    found: Any = tensor.detach()
    rows: Tensor = found.to_local() if is_divided(found) else found
    return rows


def first_row(tensor: Tensor) -> int:
    """Which row of the whole tensor is the first of `local`."""
    if not is_divided(tensor):
        return 0
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    parts, part = int(mesh.size(mesh.ndim - 1)), int(mesh.get_local_rank(mesh.ndim - 1))
    # As torch.chunk cuts: all parts but the last ones are as large as the first.
    rows: int = tensor.shape[0]
    return min(rows, -(-rows // parts) * part)


def whole(tensor: Tensor) -> Tensor:
    """All of `tensor`, detached. Of a divided one a copy, which all processes that hold rows of it must ask for together."""
    found: Any = tensor.detach()
    made: Tensor = found.full_tensor() if is_divided(found) else found
    return made


@torch.no_grad()
def whole_rows(tensor: Tensor, first: int, last: int) -> Tensor:
    """Rows `first` up to `last` of all of `tensor`, detached. Of a divided one a copy, for which those that hold them send
    theirs; all processes that hold rows of `tensor` must ask for the same together.
    """
    if not is_divided(tensor):
        return tensor.detach()[first:last]
    here, offset = local(tensor), first_row(tensor)
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    parts, group = int(mesh.size(mesh.ndim - 1)), mesh.get_group(mesh.ndim - 1)
    made = here.new_empty((last - first, *tensor.shape[1:]))
    each = -(-tensor.shape[0] // parts)  # as torch.chunk cuts
    for owner in range(first // each, -(-last // each)):
        start, stop = max(first, owner * each), min(last, (owner + 1) * each)
        rows = made[start - first : stop - first]
        if owner == mesh.get_local_rank(mesh.ndim - 1):
            rows.copy_(here[start - offset : stop - offset])
        dist.broadcast(rows, dist.get_global_rank(group, owner), group=group)
    return made


@torch.no_grad()
def fill(tensor: Tensor, source: Rows) -> None:
    """Copies the rows that this process holds from the whole tensor `source`, of the same shape."""
    if not is_divided(tensor):
        tensor.copy_(source if isinstance(source, Tensor) else source[0 : source.shape[0]])
        return
    fill_part(tensor, 0, tensor.shape[0], lambda first, last: source[first:last])


@torch.no_grad()
def fill_part(tensor: Tensor, start: int, stop: int, read: Callable[[int, int], Tensor]) -> None:
    """Copies those of the rows `start` up to `stop` of the whole `tensor` that this process holds.

    `read(first, last)`: rows of the part, counted from `start`, their numbers in this order in any shape.
    """
    here, offset = local(tensor), first_row(tensor)
    first, last = max(start, offset), min(stop, offset + len(here))
    if first < last:
        values = read(first - start, last - start)
        here[first - offset : last - offset].view(values.shape).copy_(values)


def copies(tensor: Tensor, rank: int, ranks: int) -> tuple[int, int]:
    """How many processes hold the rows of `local`, and which of them this one is, counted from 0.

    `rank` of `ranks`: this process's, all of which hold what is not divided.
    """
    if not is_divided(tensor):
        return rank, ranks
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    if mesh.ndim == 1:
        return 0, 1
    return int(mesh.get_local_rank(0)), int(mesh.size(0))
