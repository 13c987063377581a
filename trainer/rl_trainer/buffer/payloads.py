"""How payloads of groups travel between samplers, buffer and learners.

They do not pass through the buffer's actor unless they are small: up to `INLINE_BYTES` they travel inside the call (one
message instead of four); above, who sends puts the bytes into the object store and the buffer adopts them
(`flow/adoption.py`): they are on its own node then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError

from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.buffer.groups import Handed
from rl_trainer.error_text import RESUME_HINT, first_line
from rl_trainer.flow.calls import INLINE_BYTES
from rl_trainer.trajectory import Group

FETCH_SECONDS = 60.0
_Sent = TypeVar("_Sent", Group, Handed)


def fetch_payloads(payloads: Sequence[Any], timeout: float = FETCH_SECONDS) -> list[Any]:
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
    return [next(fetched) if isinstance(payload, ray.ObjectRef) else payload for payload in payloads]


def to_send(payloads: Iterable[bytes]) -> list[Any]:
    """Payloads of one call, bytes or references: counted together, as Ray itself moves larger calls through the store."""
    sent: list[Any] = []
    inline = 0
    for data in payloads:
        inline += len(data)
        if inline > INLINE_BYTES:
            inline -= len(data)
            sent.append(ray.put(np.frombuffer(data, np.uint8)))
        else:
            sent.append(data)
    return sent


def referred(groups: Iterable[_Sent]) -> list[_Sent]:
    """The same with large payloads as `[reference]`."""
    given = list(groups)
    payloads = to_send(group.payload for group in given)
    return [
        replace(group, payload=[payload] if isinstance(payload, ray.ObjectRef) else payload)
        for group, payload in zip(given, payloads, strict=True)
    ]
