"""What actors measure of their own work, all the time: a few additions for each pass of a model. No torch, no Ray.

Numbers travel with spans that are sent anyway: as the arguments of one named `timeline.MEASURED`, which no timeline shows.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rl_trainer.profile.least_squares import LeastSquares

# ru_maxrss is in KiB on Linux and in bytes on macOS.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


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


class LearnerMeter:
    """Seconds of a learner by what they went to: passes, reduce, optimizer, log_probs, values.

    Args:
        settled: returns when the device has done what it was told; None: it has when a call returns.
    """

    def __init__(self, settled: Callable[[], object] | None = None) -> None:
        self._settled = settled or (lambda: None)
        self._seconds: dict[str, float] = {}
        self._inner = 0.0  # of blocks within those that are open

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """The seconds of the block are those of `part`, but for blocks inside of it, which are their own parts'."""
        before, self._inner = self._inner, 0.0
        self._settled()
        started = time.perf_counter()
        try:
            yield
        finally:
            self._settled()
            seconds = time.perf_counter() - started
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds - self._inner
            self._inner = before + seconds

    def drain(self) -> dict[str, float]:
        """Seconds by part since the last call."""
        found, self._seconds = self._seconds, {}
        return found


class ProcessMeter:
    """What this process takes of its node."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def drain(self) -> dict[str, float]:
        """Since the last call: `wall_seconds` and `cpu_seconds` (of all threads); and `memory`, the most bytes resident."""
        wall, cpu = time.monotonic(), time.process_time()
        found = {
            "wall_seconds": wall - self._wall,
            "cpu_seconds": cpu - self._cpu,
            "memory": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT),
        }
        self._wall, self._cpu = wall, cpu
        return found
