"""What passes between buffer, samplers and learners: configuration, tickets, answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rl_api.errors import RLTrainError
from rl_trainer.flow.policies import OnFull, Order


@dataclass(frozen=True)
class BufferConfig:
    """What a buffer is made with (the contract's defaults); `samplers` will register, more may.

    `max_refills`: most groups per batch that are refused because their rewards are all equal. `shared_samplers`: so many of
    the first take turns with learners on their devices. `hand_over_at`: share of a batch's groups that are finished when
    these leave the rest of it to the others; None: they do when learners come. `all_move`: no group has to stay with
    its sampler.
    """

    groups_per_step: int
    capacity: int = 256
    max_staleness: int = 0
    order: Order = "fifo"
    on_full: OnFull = "block"
    samplers: int = 1
    steps_per_version: int = 1
    max_refills: int = 0
    shared_samplers: int = 0
    hand_over_at: float | None = None
    all_move: bool = False
    alarm_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.capacity < self.groups_per_step:
            raise RLTrainError(
                f"buffer.capacity is {self.capacity}, but one step trains on {self.groups_per_step} groups "
                "(algorithm.promptsPerStep): the capacity must be at least that"
            )


@dataclass(frozen=True)
class Ticket:
    """Leave to sample one group. `group_id` is the prompt's index; `version` the weights to use, or newer; `begun`: the
    payload of a `Handed` that is gone on with; `issue`: larger than that of every ticket before it, of whatever group."""

    group_id: int
    version: int
    reissued: bool
    begun: Any = field(default=None, compare=False, repr=False)
    issue: int = 0


@dataclass(frozen=True)
class Handed:
    """A group that its sampler has begun and gives to others.

    Attributes:
        group_id: the prompt's index.
        version: the oldest weights among those of its tokens; None: it has none yet, and `payload` says nothing.
        payload: what there is of it, bytes or where the buffer keeps them.
        issue: of its ticket; None: of the one that its sampler has now.
    """

    group_id: int
    version: int | None
    payload: Any = b""
    issue: int | None = None


@dataclass(frozen=True)
class PutResult:
    """What became of a `put`: `accepted`, or the reason it was not (`duplicate`, `late`, `zero_variance`, `rejected`)."""

    accepted: bool
    reason: str | None = None
    dropped: tuple[int, ...] = ()
