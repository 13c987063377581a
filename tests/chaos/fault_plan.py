"""Which faults are injected where and when: drawn from a seed alone. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

KINDS: Final = ("kill", "stop", "pause")
"""SIGKILL; SIGSTOP for good; SIGSTOP, and SIGCONT before anybody may give the process up."""

TARGETS: Final = ("sampler", "rank", "buffer", "driver")
PHASES: Final = ("generate", "score", "train", "publish", "checkpoint", "evaluate", "resume", "move")
"""What a run does; resume: it is started again, and loads model and checkpoint; move: learners move their tensors onto or
off devices that samplers share, where the run does that."""

_TWO_SAMPLERS: Final = {"sampler": {"replicas": 2}}
_TWO_RANKS: Final = {**_TWO_SAMPLERS, "learner": {"replicas": 2, "parallelism": "fsdp2"}}
_SHARED: Final = {
    "sampler": {"replicas": 2, "resources": {"cpu": 0.5}},
    "learner": {"replicas": 2, "parallelism": "fsdp2"},
}
WORLDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "strict": {**_TWO_SAMPLERS, "buffer": {"maxStaleness": 0}},
    "async": {**_TWO_SAMPLERS, "buffer": {"maxStaleness": 2}},
    "ranks": {**_TWO_RANKS, "buffer": {"maxStaleness": 0}},
    "ranks-async": {**_TWO_RANKS, "buffer": {"maxStaleness": 1}},
    "collective": {
        **_TWO_SAMPLERS,
        "buffer": {"maxStaleness": 1},
        "weightSync": {"transport": "collective"},
    },
    "delta": {**_TWO_RANKS, "buffer": {"maxStaleness": 0}, "weightSync": {"transport": "delta"}},
    "adapter": {
        **_TWO_SAMPLERS,
        "learner": {"lora": {"rank": 4}},
        "buffer": {"maxStaleness": 0},
        "weightSync": {"transport": "adapter"},
    },
    "ipc": {
        **_SHARED,
        "buffer": {"maxStaleness": 0},
        "placement": {"mode": "collocated", "residency": "swap"},
        "weightSync": {"transport": "ipc"},
    },
    "background": {
        **_TWO_RANKS,
        "buffer": {"maxStaleness": 1},
        "checkpoint": {"asynchronous": "always"},
    },
    "collocated": {
        **_SHARED,
        "buffer": {"maxStaleness": 0},
        "placement": {"mode": "collocated", "residency": "swap"},
    },
    "hybrid": {
        **_SHARED,
        "sampler": {**_SHARED["sampler"], "maxSequences": 2},
        "buffer": {"maxStaleness": 1},
        "placement": {
            "mode": "hybrid",
            "sharedSamplers": 1,
            "partGroups": 2,
            "handOverAt": 0.5,
            "residency": "swap",
        },
    },
    "stored": {
        **_TWO_RANKS,
        "buffer": {"maxStaleness": 0},
        "algorithm": {"kl": {"coefficient": 0.01}},
        "checkpoint": {"asynchronous": "always", "storage": {"s3": "s3://chaos"}},
    },
}
"""Kinds of runs, by what differs: two samplers, a learner or two ranks that divide the model, strictly on-policy or not, how
weights travel, whether checkpoints are written while the next steps run, whether samplers share devices with learners, and
whether checkpoints are in an object store, where each rank writes and reads what it holds past the driver."""

DRIVER_PAUSES: Final = 4
"""A driver's pauses are so many times as long: nobody gives it up, however long it stands still."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        number: of the campaign's, from 1.
        world: of `WORLDS`.
        which: which of several such processes, as a share of their number.
        seconds: that a pause lasts.
    """

    number: int
    world: str
    kind: str
    target: str
    phase: str
    which: float
    seconds: float

    def __str__(self) -> str:
        pause = f" for {self.seconds:.1f} s" if self.kind == "pause" else ""
        return f"{self.kind} {self.target}{pause} in {self.phase}"


def shares(world: str) -> bool:
    """Whether samplers share devices with learners, and tensors are moved when these change hands."""
    return "placement" in WORLDS[world]


def is_stored(world: str) -> bool:
    """Whether checkpoints are in an object store."""
    return "storage" in WORLDS[world].get("checkpoint", {})


def meets(world: str, phase: str) -> bool:
    """Whether runs of that kind come to that phase."""
    return phase != "move" or shares(world)


def draw(
    seed: int,
    count: int,
    *,
    worlds: Sequence[str] = tuple(WORLDS),
    kinds: Sequence[str] = KINDS,
    targets: Sequence[str] = TARGETS,
    phases: Sequence[str] = PHASES,
    longest_pause: float = 2.0,
    chapter: int = 10,
) -> list[Fault]:
    """`count` faults; of all combinations of kind, target and phase none comes again before all have come, but for those
    that were left out because the run of their turn does not meet the phase.

    `chapter`: so many faults in a row are of one run, and so of one world. Each world meets one of `phases`.
    """
    chance = random.Random(seed)
    combinations = _decks([*itertools.product(kinds, targets, phases)], chance)
    homes = _decks([*worlds], chance)
    faults: list[Fault] = []
    world = ""
    for number in range(count):
        if number % chapter == 0:
            world = next(homes)
        kind, target, phase = next(one for one in combinations if meets(world, one[2]))
        pause = chance.uniform(0.2, longest_pause) * (DRIVER_PAUSES if target == "driver" else 1)
        faults.append(Fault(number + 1, world, kind, target, phase, chance.random(), round(pause, 2)))
    return faults


def chapters(faults: Iterable[Fault], length: int) -> list[list[Fault]]:
    """Faults of one run each: at most `length`, all of its world."""
    found: list[list[Fault]] = []
    for fault in faults:
        if not found or len(found[-1]) >= length or found[-1][0].world != fault.world:
            found.append([])
        found[-1].append(fault)
    return found


def _decks(cards: list[Any], chance: random.Random) -> Iterator[Any]:
    while True:
        chance.shuffle(cards)
        yield from list(cards)
