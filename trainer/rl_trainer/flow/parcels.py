"""What one worker hands to another, by the way that fits: in the call, by reference, or point to point.

A parcel is made by who has the value and travels with whatever call or answer reaches who wants it. Small values lie in it;
large ones lie in the object store, and it has the reference; tensors for another rank of the same process group of
torch.distributed go to that rank directly (gloo, NCCL), without a copy in the store, and the parcel says what to expect.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray import cloudpickle
from torch import Tensor

from rl_api.errors import DeadlineExceeded
from rl_trainer.error_text import first_line
from rl_trainer.flow.calls import answer
from rl_trainer.flow.ways import Way, choose_way

SEND_SECONDS = 600.0
# Parcels to one rank, point to point, that nobody may have opened yet: gloo does not say of a send that it is over, unless
# it is waited for.
MOST_UNDER_WAY = 4


@dataclass(frozen=True)
class Parcel:
    """A value on its way.

    Attributes:
        source: who sends it, such as learner 0.
        way: how it travels.
        size: its bytes.
        content: the value; or a list of the one reference to it; or, point to point, what its tensors look like by name
            (the empty name: it is one tensor).
        rank: of the sender in the process group, point to point.
        tag: by which its tensors are known there.
    """

    source: str
    way: Way
    size: int
    content: Any
    rank: int = 0
    tag: int = 0


@dataclass
class Desk:
    """Makes and opens the parcels of one worker, for one thread. `owner`: its name in sentences."""

    owner: str
    _tags: Any = field(default_factory=itertools.count)
    # What was sent point to point, by rank, the oldest first: tensors must stay as they are until they have arrived.
    _sent: defaultdict[int, deque[list[tuple[Any, Tensor]]]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    def send(self, value: Any, to: int | None = None, way: Way | None = None) -> Parcel:
        """A parcel with `value`.

        Args:
            value: anything that can be pickled. Arrays and tensors must not change until they have arrived.
            to: the receiver's rank in the default process group of torch.distributed, where this process has one too; None:
                it has none, or nobody knows.
            way: how it is to travel; None: as `choose_way` says.

        Raises:
            ValueError: point to point, but not to a rank, or not a tensor or a mapping of names to tensors.
            DeadlineExceeded: `MOST_UNDER_WAY` parcels to that rank are under way, and the oldest is not opened.
        """
        tensors = _tensors(value)
        size = size_of(value)
        chosen = way or choose_way(size, tensors is not None, to is not None and dist.is_initialized())
        if chosen == "inline":
            return Parcel(self.owner, chosen, size, value)
        if chosen == "reference":
            return Parcel(self.owner, chosen, size, [ray.put(value)])
        if to is None or tensors is None:
            raise ValueError(
                f"{self.owner}: found a {type(value).__name__} for rank {to}; point to point go a tensor or a mapping of "
                "names to tensors, to a rank of the process group"
            )
        if len(self._sent[to]) >= MOST_UNDER_WAY:
            for call, _ in self._sent[to][0]:
                _awaited(call, SEND_SECONDS, f"{self.owner}: rank {to} has not taken what was sent to it")
            self._sent[to].popleft()
        tag, rank = next(self._tags), dist.get_rank()
        parts = [tensor.detach().contiguous() for tensor in tensors.values()]
        self._sent[to].append([(dist.isend(part, to, tag=tag), part) for part in parts if part.numel()])
        looks = {name: (tuple(part.shape), part.dtype) for name, part in zip(tensors, parts, strict=True)}
        return Parcel(self.owner, chosen, size, looks, rank, tag)

    def receive(self, parcel: Parcel, timeout: float = SEND_SECONDS, device: str = "cpu") -> Any:
        """The value; once of each parcel. Arrays that came by reference are read-only views.

        `device`: of tensors that come point to point. Raises DeadlineExceeded when it is not here after `timeout` seconds,
        and as `answer` does when it was lost with its sender.
        """
        if parcel.way == "inline":
            return parcel.content
        if parcel.way == "reference":
            return answer(parcel.content[0], parcel.source, f"handing a value to {self.owner}", timeout)
        made = {
            name: torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in parcel.content.items()
        }
        for part in made.values():
            if part.numel():
                call = dist.irecv(part, parcel.rank, tag=parcel.tag)
                _awaited(call, timeout, f"{self.owner}: nothing came of {parcel.source}")
        return made.get("", made)


def size_of(value: Any) -> int:
    """Bytes of a value: of tensors, arrays and bytes what they hold, also in mappings and sequences; else of its pickle."""
    if isinstance(value, (Tensor, np.ndarray)):
        return int(value.nbytes)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).nbytes
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sum(map(size_of, value))
    return len(cloudpickle.dumps(value))


def _tensors(value: Any) -> dict[str, Tensor] | None:
    """The tensors that a value consists of, by name; None: of something else as well."""
    if isinstance(value, Tensor):
        return {"": value}
    if not isinstance(value, Mapping) or not value or "" in value:
        return None
    return dict(value) if all(isinstance(one, Tensor) for one in value.values()) else None


def _awaited(call: Any, timeout: float, what: str) -> None:
    if call is None:  # torch: this process is not of the group
        raise DeadlineExceeded(f"{what}: this process is no rank of the group")
    try:
        call.wait(timedelta(seconds=timeout))
    except RuntimeError as error:
        raise DeadlineExceeded(f"{what} within {timeout:.0f} s ({first_line(error)})") from error
