"""A group of processes, one learner and the samplers, in which the learner's bytes reach everybody: gloo or NCCL.

It stands beside the default group of `torch.distributed`, which the learners have among themselves, and does not touch it.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_trainer.weights.transports.invitation import Invitation

_NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_POLL_SECONDS = 0.001
_SENDER = 0
_DEVICE = "cuda"  # where NCCL's bytes are


class MeetingPoint:
    """Where groups meet, on the learner's node; open from the beginning to the end of the process."""

    def __init__(self, host: str):
        """`host`: this node's address for others."""
        self.store: Any = dist.TCPStore(  # type: ignore[attr-defined]
            host, 0, None, True, timedelta(seconds=60), wait_for_workers=False
        )
        self.address: tuple[str, int] = (host, int(self.store.port))


class WeightGroup:
    """One member's end. Where a broadcast fails, the group is of no use any more: who closes it frees the others from
    waiting, as its connections close."""

    def __init__(self, invitation: Invitation, rank: int, point: MeetingPoint | None = None):
        """Meets the others, all of them or none.

        Args:
            invitation: which group.
            rank: of this member; the learner is 0.
            point: the learner's own; samplers go to that of the invitation.

        Raises RuntimeError when not all have come after `invitation.seconds`.
        """
        limit = timedelta(seconds=invitation.seconds)
        meeting = point.store if point is not None else _visit(invitation.address, limit)
        store = dist.PrefixStore(f"weights {invitation.group}", meeting)  # type: ignore[attr-defined]
        self._sends = rank == _SENDER
        self.name, self._on_device = invitation.group, invitation.backend == "nccl"
        self._group: Any
        if self._on_device:
            self._group = _nccl_group(store, rank, invitation.size, limit)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, invitation.size, limit)

    def broadcast(self, data: Tensor, deadline: float) -> None:
        """Bytes on the host, uint8, from the learner's tensor into everybody's; at most until `deadline` (time.monotonic).

        Raises RuntimeError or TimeoutError when they are not with everybody that this member passes them on to.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = _SENDER, 0, timedelta(seconds=left)
        if not self._on_device:
            self._group.broadcast([data], options).wait(timedelta(seconds=left))
            return
        there = data.to(_DEVICE) if self._sends else torch.empty_like(data, device=_DEVICE)
        work = self._group.broadcast([there], options)
        while not work.is_completed():  # `wait` would block the stream alone, and without an end
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broadcast did not end within {left:.0f} s")
            time.sleep(_POLL_SECONDS)
        if not self._sends:
            data.copy_(there)

    def close(self) -> None:
        """Leaves it."""
        if self._on_device:
            self._group.abort()
        self._group = None


class Seat:
    """A member's place in one group after the other."""

    def __init__(self) -> None:
        self._group: WeightGroup | None = None
        self._left: set[str] = set()

    def take(self, invitation: Invitation, rank: int, point: MeetingPoint | None = None) -> WeightGroup:
        """The group of an invitation, made unless it is the one before; see `WeightGroup`.

        Raises RuntimeError when it has been left: others have seen it end.
        """
        if self._group is not None and self._group.name == invitation.group:
            return self._group
        self.leave()
        if invitation.group in self._left:
            raise RuntimeError("its group was given up")
        self._left.add(invitation.group)  # unless it comes about, and then when it is left
        self._group = WeightGroup(invitation, rank, point)
        return self._group

    def leave(self) -> None:
        """Closes the group, if there is one."""
        group, self._group = self._group, None
        if group is not None:
            group.close()


def _visit(address: tuple[str, int], limit: timedelta) -> Any:
    return dist.TCPStore(*address, None, False, limit, wait_for_workers=False)  # type: ignore[attr-defined]


def _nccl_group(store: Any, rank: int, size: int, limit: timedelta) -> Any:
    """One whose failures are ours to see: by default NCCL's watchdog ends a process in which a collective is overdue."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    before = os.environ.get(_NCCL_ERRORS)
    os.environ[_NCCL_ERRORS] = "0"
    try:
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        if before is None:
            del os.environ[_NCCL_ERRORS]
        else:
            os.environ[_NCCL_ERRORS] = before
