"""How payloads of groups travel between samplers, buffer and learners.

They do not pass through the buffer's actor unless they are small: as `flow/ways.py` says, they travel inside the call (one
message instead of four), or who sends puts the bytes into the object store and the buffer adopts them (`flow/adoption.py`):
they are on its own node then. Never point to point: who will learn from a group is not known when it is sampled, and its
sampler may be gone by then.

`said`, where it is given, gets the way that they took and their bytes, for a span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError

from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.buffer.groups import Handed
from rl_trainer.error_text import RESUME_HINT, first_line
from rl_trainer.flow.ways import Way, choose_way, travelled
from rl_trainer.observe.between_nodes import came_from
from rl_trainer.placement.own_device import own_node
from rl_trainer.trajectory import Group, packed_bytes

FETCH_SECONDS = 60.0
_Sent = TypeVar("_Sent", Group, Handed)


def fetch_payloads(
    payloads: Sequence[Any], timeout: float = FETCH_SECONDS, said: dict[str, Any] | None = None
) -> list[Any]:
    """Payloads as bytes-like values, those by reference fetched in one call.

    Raises:
        DeadlineExceeded: not all of them arrived within `timeout` seconds.
        ActorDied: one was lost with the process or the node that held it.
    """
    refs = [payload for payload in payloads if isinstance(payload, ray.ObjectRef)]
    try:
        fetched = iter(ray.get(refs, timeout=timeout)) if refs else iter(())
    except GetTimeoutError:
        raise DeadlineExceeded(
            f"node {ray.util.get_node_ip_address()}: the groups of a batch did not arrive from the buffer's node within "
            f"{timeout:.0f} s; look at the network between the two, then {RESUME_HINT}"
        ) from None
    except RayError as error:
        raise ActorDied(f"a group of a batch was lost ({first_line(error)}); {RESUME_HINT}") from None
    found = [next(fetched) if isinstance(payload, ray.ObjectRef) else payload for payload in payloads]
    _tell(said, payloads, found)
    return found


def to_send(payloads: Iterable[bytes]) -> list[Any]:
    """Payloads of one call, bytes or references: counted together, as Ray itself moves larger calls through the store."""
    sent: list[Any] = []
    inline = 0
    for data in payloads:
        if choose_way(inline + len(data)) == "inline":
            inline += len(data)
            sent.append(data)
        else:
            sent.append(ray.put(np.frombuffer(data, np.uint8)))
    return sent


def referred(groups: Iterable[_Sent], said: dict[str, Any] | None = None) -> list[_Sent]:
    """The same with large payloads as `[reference]`."""
    given = list(groups)
    payloads = to_send(group.payload for group in given)
    _tell(said, payloads, [group.payload for group in given])
    return [
        replace(group, payload=[payload] if isinstance(payload, ray.ObjectRef) else payload)
        for group, payload in zip(given, payloads, strict=True)
    ]


def _tell(said: dict[str, Any] | None, sent: Iterable[Any], data: Iterable[Any]) -> None:
    """Of payloads as they were sent, and of their bytes."""
    if said is not None:
        ways: list[Way] = ["reference" if isinstance(one, ray.ObjectRef) else "inline" for one in sent]
        said |= travelled(ways, sum(memoryview(one).nbytes for one in data))


class Arrivals:
    """Groups whose payloads come to this process: where they are then, and the bytes that came from other nodes."""

    def __init__(self) -> None:
        self._bytes = 0.0

    @cached_property
    def _node(self) -> str:
        return own_node()

    def here(self, group: Group) -> Group:
        """The group with its payload on this process's node; as it is where nobody knows on which one it was."""
        if not group.node:
            return group
        self._bytes += came_from(group.node, self._node, packed_bytes(group))
        return replace(group, node=self._node)

    def drain(self) -> float:
        """Bytes that came from other nodes since the last call."""
        size, self._bytes = self._bytes, 0.0
        return size
