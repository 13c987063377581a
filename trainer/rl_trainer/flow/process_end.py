"""That a process has ended for certain, on whatever node it is.

Ray calls an actor dead as soon as somebody has asked for its end. A process that is stopped lives on for seconds after
that, and so may the memory of its device.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, RayError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_trainer.placement.own_device import own_node

# For the system to take all from a process that it was told to kill.
END_SECONDS = 60.0
# For a process of Ray to start that looks.
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Process:
    """One process. `node`: Ray's name of where it is; `started`: of the system's clock, as numbers are used again."""

    node: str
    number: int
    started: str

    @classmethod
    def own(cls) -> Process:
        """The one that asks."""
        started = started_at(os.getpid())
        assert started is not None, "it runs"
        return cls(own_node(), os.getpid(), started)

    def end(self, seconds: float = END_SECONDS) -> bool:
        """Kills it, where that was not done, and waits for `seconds` at most until it has ended; whether it has. It has with
        its node."""
        place = NodeAffinitySchedulingStrategy(self.node, soft=False)
        call = _end.options(scheduling_strategy=place).remote(self.number, self.started, seconds)
        try:
            ended: bool = ray.get(call, timeout=_START_SECONDS + seconds)
        except (NodeDiedError, TaskUnschedulableError):
            return True
        except (GetTimeoutError, RayError):
            return False
        return ended


def end(number: int, started: str, seconds: float) -> bool:
    """`Process.end`, on its node."""
    deadline = time.monotonic() + seconds
    while started_at(number) == started:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def started_at(number: int) -> str | None:
    """When the process of this number was started; None: there is none that holds anything."""
    place = Path("/proc") / str(number)
    try:
        # Its name, in parentheses, may have spaces; see proc(5).
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        threads = list((place / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Dead, and its parent has not asked how it ended: but for its threads that is all that is left of it.
    if fields[0] in "ZX" and len(threads) <= 1:
        return None
    return fields[19]


_end = ray.remote(num_cpus=0, max_retries=0)(end)
