"""What actors measure of their own work, all the time: a few additions for each pass of a model. No torch, no Ray.

Numbers travel with spans that are sent anyway: as the arguments of one named `timeline.MEASURED`, which no timeline shows.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rl_trainer.profile.least_squares import LeastSquares

# ru_maxrss is in KiB on Linux and in bytes on macOS.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
# A GPU's driver says how busy it was in the last second or less.
LOOK_SECONDS: Final = 1.0


class EngineMeter:
    """What an engine's steps take: decoding by sequences and cached tokens, prompts by their tokens."""

    def __init__(self) -> None:
        self._decode = LeastSquares(3)
        self._prefill_seconds = self._prefill_tokens = 0.0
        self._typical = 0.0  # seconds of a decode step of late

    def decoded(self, seconds: float, active: int, cached: int) -> None:
        """One token for each of `active` sequences, which read `cached` tokens' keys and values, all together."""
        self._decode.add(1.0, float(active), float(cached), seconds)
        self._typical += (seconds - self._typical) / min(self._decode.count, 16.0)

    def prefilled(self, seconds: float, tokens: int) -> None:
        """Prompts of `tokens` tokens, all together, went through the model."""
        self._prefill_seconds += seconds
        self._prefill_tokens += tokens

    def mixed(self, seconds: float, tokens: int) -> None:
        """Prompts of `tokens` tokens went through the model in the same step as other sequences' next tokens."""
        self.prefilled(max(0.0, seconds - self._typical), tokens)

    def drain(self) -> dict[str, Any]:
        """Since the last call: `decode` (see `LeastSquares.drain`), `prefill_seconds` and `prefill_tokens`."""
        found = {
            "decode": self._decode.drain(),
            "prefill_seconds": self._prefill_seconds,
            "prefill_tokens": self._prefill_tokens,
        }
        self._prefill_seconds = self._prefill_tokens = 0.0
        return found


class Clock:
    """Marks moments of what a learner computes on: here of a device that has done its work when a call returns."""

    def mark(self) -> Any:
        """This moment of its work; must not wait for the device."""
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; waits until the device is there."""
        return float(end - begin)


class LearnerMeter:
    """Seconds of a learner by what they went to: passes, reduce, optimizer, log_probs, values.

    Args:
        clock: of what it computes on; None: of a processor.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._open: list[str] = []
        self._blocks: list[tuple[str, str | None, Any, Any]] = []  # part, that around it, begin and end

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """The seconds of the block are those of `part`, but for blocks inside of it, which are their own parts'."""
        around = self._open[-1] if self._open else None
        self._open.append(part)
        begin = self._clock.mark()
        try:
            yield
        finally:
            self._open.pop()
            self._blocks.append((part, around, begin, self._clock.mark()))

    def drain(self) -> dict[str, float]:
        """Seconds by part since the last call."""
        found: dict[str, float] = {}
        blocks, self._blocks = self._blocks, []
        for part, around, begin, end in blocks:
            seconds = self._clock.seconds(begin, end)
            found[part] = found.get(part, 0.0) + seconds
            if around is not None:
                found[around] = found.get(around, 0.0) - seconds
        return found


class BusyMeter:
    """How busy something is, looked at now and then by a thread of its own: at all times, not only when work has ended."""

    def __init__(self, look: Callable[[], float], every: float = LOOK_SECONDS) -> None:
        """`look`: its busy share of late, 0 to 1; asked no more where it raises. `every`: seconds between two looks."""
        self._look, self._every = look, every
        self._lock, self._sum, self._looks = threading.Lock(), 0.0, 0
        threading.Thread(target=self._watch, name="how busy a GPU is", daemon=True).start()

    def drain(self) -> dict[str, float]:
        """Since the last call: `gpu_busy`, the mean; left out where nothing is known."""
        with self._lock:
            total, looks, self._sum, self._looks = self._sum, self._looks, 0.0, 0
        return {"gpu_busy": total / looks} if looks else {}

    def _watch(self) -> None:
        while True:
            try:
                found = self._look()
            except Exception:  # a driver's errors have no class in common
                return
            with self._lock:
                self._sum, self._looks = self._sum + found, self._looks + 1
            time.sleep(self._every)


class ProcessMeter:
    """What this process takes of its node; `gpu`: of its GPU, where it has one."""

    def __init__(self, gpu: BusyMeter | None = None) -> None:
        self._gpu = gpu
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def drain(self) -> dict[str, float]:
        """Since the last call: `wall_seconds` and `cpu_seconds` (of all threads), and what its GPU did (`BusyMeter`); and
        `memory`, the most bytes resident."""
        wall, cpu = time.monotonic(), time.process_time()
        found = {
            "wall_seconds": wall - self._wall,
            "cpu_seconds": cpu - self._cpu,
            "memory": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT),
        }
        self._wall, self._cpu = wall, cpu
        return found if self._gpu is None else found | self._gpu.drain()
