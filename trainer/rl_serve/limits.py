"""How often clients may ask: token buckets, of all together and of each key. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rl_serve.errors import ApiError


@dataclass
class _Bucket:
    """Leaves to ask: up to a second's worth of them can be saved, at least one."""

    left: float
    at: float

    def refill(self, rate: float, now: float) -> None:
        most = max(1.0, rate)
        self.left = min(most, self.left + rate * (now - self.at))
        self.at = now


class RequestLimits:
    """The limits of one replica: its share of the service's.

    Args:
        total: requests per second of all clients at all replicas; None: any number.
        per_key: of each key; None: any number.
        clock: seconds that only grow.

    Attributes:
        replicas: among how many the limits are divided.
    """

    def __init__(self, total: float | None, per_key: float | None, clock: Callable[[], float]) -> None:
        self._total, self._per_key, self._clock = total, per_key, clock
        self._buckets: dict[str | None, _Bucket] = {}
        self.replicas = 1

    def check(self, key: str | None) -> None:
        """One request comes, with a known key (None: without one).

        Raises:
            ApiError: it comes too early, 429, with the seconds after which it does not.
        """
        now = self._clock()
        wanted = []
        if self._total is not None:
            wanted.append((self._bucket(None, self._total, now), self._total, "of all clients together"))
        if self._per_key is not None and key is not None:
            wanted.append((self._bucket(key, self._per_key, now), self._per_key, "with one key"))
        for bucket, rate, whose in wanted:
            if bucket.left < 1:
                raise ApiError(
                    f"too many requests: allowed are {rate:g} in a second {whose}",
                    status=429,
                    code="rate_limit_exceeded",
                    retry_after=max(1, math.ceil((1 - bucket.left) * self.replicas / rate)),
                )
        for bucket, _, _ in wanted:
            bucket.left -= 1

    def _bucket(self, key: str | None, rate: float, now: float) -> _Bucket:
        share = rate / self.replicas
        found = self._buckets.setdefault(key, _Bucket(max(1.0, share), now))
        found.refill(share, now)
        return found
