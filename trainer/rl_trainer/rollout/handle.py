"""One sampler as the driver knows it, and the ends it may come to that are not its process's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from rl_api import RunSpec
from rl_api.errors import ActorDied
from rl_trainer.flow.calls import DEATHS
from rl_trainer.model.shared_folder import READ_RATE
from rl_trainer.placement.elastic import Seat

# To load model and task, besides what the model's bytes take; vLLM compiles for minutes before it answers.
START_TIMEOUTS = {"torch": 300.0, "vllm": 900.0, "endpoint": 300.0}


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

    @property
    def is_gone(self) -> bool:
        """Whether Ray has found its process dead, as nobody had told Ray to end it."""
        return self.error is not None and isinstance(self.error.__cause__, DEATHS)


def start_timeout(spec: RunSpec, size: int) -> float:
    """Seconds in which a sampler is to have loaded the task, and a model folder of `size` bytes."""
    server = spec.sampler.endpoint
    awaited = server.timeout.seconds if server is not None else 0.0  # until the server is there
    return START_TIMEOUTS[spec.sampler.engine] + size / READ_RATE + awaited


def seat_of(rank: int, node: str | None, sampler: SamplerHandle | None, failures: int) -> Seat:
    """A place on `node`, and the sampler that was started there; `failures`: see `Seat`."""
    if sampler is None:
        return Seat(rank, node)
    left = isinstance(sampler.error, SamplerLeft)
    return Seat(rank, node, sampler.node, sampler.died, failures, left)
