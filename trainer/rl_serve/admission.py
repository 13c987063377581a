"""Who may wait: at most `slots` sequences are generated at once and `queue` wait for a slot; others are refused. Pure."""

from __future__ import annotations

import math

from rl_serve.errors import ApiError

# A client that is refused comes back after that many seconds at the earliest, and at the latest.
_SOONEST, _LATEST = 1, 60
# How much the newest duration counts in the mean.
_WEIGHT = 0.2


class Admission:
    """The places of one replica. A request holds one for each of its sequences, from `admit` to `release`.

    Args:
        slots: sequences that are generated at once.
        queue: sequences that may wait besides.
    """

    def __init__(self, slots: int, queue: int) -> None:
        self.slots, self.queue = slots, queue
        self.taken = 0
        self._seconds = 1.0

    @property
    def places(self) -> int:
        """Sequences that can be admitted together."""
        return self.slots + self.queue

    @property
    def full(self) -> bool:
        """Whether a request of one sequence would be refused."""
        return self.taken >= self.places

    def admit(self, count: int) -> None:
        """Take `count` places.

        Raises:
            ApiError: there are not as many: 429, with the seconds after which it is worth trying again.
        """
        if self.taken + count > self.places:
            raise ApiError(
                f"the queue is full: {self.taken} of {self.places} places are taken and this request needs {count}; "
                "try again later",
                status=429,
                code="queue_full",
                retry_after=self.retry_after(),
            )
        self.taken += count

    def release(self, count: int, seconds: float) -> None:
        """Give `count` places back, which were held for `seconds`."""
        self.taken -= count
        self._seconds += _WEIGHT * (seconds - self._seconds)

    def retry_after(self) -> int:
        """Seconds until a place is likely to be free: `taken` sequences leave, `slots` at a time, each after the mean."""
        rounds = self._seconds / max(1, min(self.slots, self.taken))
        return min(_LATEST, max(_SOONEST, math.ceil(rounds)))
