"""Who may wait: `slots` sequences are generated at once and `queue` wait for a slot, none longer than is of use. Pure.

Whoever comes first has a slot first, and all have a deadline. Were everybody let in, under a load that does not end a
request would get its slot when its deadline is near: all slots would write answers that nobody gets.
"""

from __future__ import annotations

import math

from rl_serve.errors import ApiError

# A client that is refused comes back after that many seconds at the earliest, and at the latest.
_SOONEST, _LATEST = 1, 60
# How much the newest duration counts in the mean.
_WEIGHT = 0.2
# How much longer than the mean an answer may well take.
_DEVIATIONS = 2.0


class Admission:
    """The places of one replica. A request holds one for each of its sequences, from `admit` to `release`.

    Args:
        slots: sequences that are generated at once.
        queue: sequences that may wait besides.
        timeout: seconds from a request's arrival to the end of its answers.
    """

    def __init__(self, slots: int, queue: int, timeout: float = math.inf) -> None:
        self.slots, self.queue, self.timeout = slots, queue, timeout
        self.taken = 0
        self._seconds = 1.0
        # Of a sequence in its slot, and how far from that they are on average, as TCP measures round trips (RFC 6298).
        self._writing = self._differs = 0.0

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
            ApiError: there are not as many, or what waits already takes so long that the deadline would pass: 429, with the
                seconds after which it is worth trying again.
        """
        if self.taken + count > self.places:
            raise ApiError(
                f"the queue is full: {self.taken} of {self.places} places are taken and this request needs {count}; "
                "try again later",
                status=429,
                code="queue_full",
                retry_after=self.retry_after(),
            )
        if self.taken >= self.slots and (seconds := self.expected(count)) > self.timeout:
            raise ApiError(
                f"the queue is too long: an answer would be ready after about {seconds:.0f} seconds, and may take "
                f"{self.timeout:g}; try again later",
                status=429,
                code="queue_full",
                retry_after=min(_LATEST, max(self.retry_after(), math.ceil(seconds - self.timeout))),
            )
        self.taken += count

    def withdraw(self, count: int) -> None:
        """Give `count` places back that were of no use."""
        self.taken -= count

    def expected(self, count: int) -> float:
        """Seconds in which `count` sequences more are likely to be ready; 0: nothing is known.

        Those before them leave, `slots` at a time, and then they.
        """
        waiting = max(0, self.taken + count - self.slots)
        return (waiting / self.slots + 1) * self._writing + _DEVIATIONS * self._differs

    def release(self, count: int, seconds: float) -> None:
        """Give `count` places back, which were held for `seconds`."""
        self.taken -= count
        self._seconds += _WEIGHT * (seconds - self._seconds)

    def wrote(self, seconds: float, ended: bool) -> None:
        """A sequence had a slot for `seconds`, until it ended, or its deadline ended it: then it takes longer than that."""
        if ended and self._writing:
            self._differs += _WEIGHT * (abs(seconds - self._writing) - self._differs)
            self._writing += _WEIGHT * (seconds - self._writing)
        else:
            self._writing = max(self._writing, seconds)

    def retry_after(self) -> int:
        """Seconds until a place is likely to be free: `taken` sequences leave, `slots` at a time, each after the mean."""
        rounds = self._seconds / max(1, min(self.slots, self.taken))
        return min(_LATEST, max(_SOONEST, math.ceil(rounds)))
