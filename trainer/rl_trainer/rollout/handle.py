"""One sampler as the driver knows it, and the ends it may come to that are not its process's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from rl_api.errors import ActorDied


class SamplerSilent(ActorDied):
    """A sampler's process is there, and stands still."""


class SamplerLeft(ActorDied):
    """A sampler was told to go, and has given its groups back: it has not failed."""


@dataclass
class SamplerHandle:
    """One sampler that was started, and what became of it.

    Attributes:
        ready: its answer that it has loaded everything; None: it has given it, and takes part.
        node: where it was started.
        started: seconds from which on it may take its time to load; see `shares`.
        shares: it loads on a device that learners have as well; while it waits for that it does not load.
        begun: it was told to take tickets, which is done once, as it gives those back that it had.
        ended: the buffer has told it to stop.
        died: when its end was seen.
        unfinished: groups that it left.
    """

    actor: Any
    run: ray.ObjectRef[None]
    ready: ray.ObjectRef[int] | None
    node: str
    started: float
    shares: bool = False
    begun: bool = False
    ended: bool = False
    died: float | None = None
    error: ActorDied | None = None
    unfinished: int = 0
