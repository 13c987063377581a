"""What a sampler gives the buffer: groups as they are finished, and, where its pod is told to go, the rest unfinished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from rl_api.errors import ActorDied, DeadlineExceeded
from rl_trainer.buffer.handle import Buffer
from rl_trainer.rollout.handle import SamplerLeft
from rl_trainer.trajectory import Group

# How long a sampler that leaves waits for the buffer to take what is finished, and to take the rest back. It takes
# milliseconds, unless the buffer is about to go as well: the pod must not be kept for that.
PUT_SECONDS, RELEASE_SECONDS = 2.0, 5.0
# How long its process is kept until its loop has told the driver so.
END_SECONDS = 5.0


class Delivery:
    """For two threads: that of the sampler's loop, and the one that hears that the pod is told to go, which may `leave`."""

    def __init__(self, buffer: Buffer, rank: int, wake: Callable[[], None]):
        """`wake`: called when the loop is to end."""
        self._buffer, self._rank, self._wake = buffer, rank, wake
        self._puts: list[Future[Any]] = []
        self._leaving, self._given_back, self._told = threading.Event(), threading.Event(), threading.Event()
        self._unfinished = 0

    @property
    def leaves(self) -> bool:
        """Whether it was told to go."""
        return self._leaving.is_set()

    def put(self, groups: Sequence[Group], said: dict[str, Any] | None = None) -> None:
        """Sends finished groups, and waits for nothing. `said`: see `Buffer.put_ref`."""
        self._puts.append(self._buffer.put_ref(self._rank, groups, said).future())

    def check(self) -> None:
        """Raises what the buffer has answered meanwhile to groups that it did not take."""
        for future in [future for future in self._puts if future.done()]:
            self._puts.remove(future)
            future.result()

    def leave(self) -> int | None:
        """Gives what is unfinished back at once, to be sampled by others; nothing is begun any more from now on. How many
        groups these are; None: the buffer does not answer."""
        self._leaving.set()
        self._wake()
        try:
            wait(list(self._puts), PUT_SECONDS)
            self._unfinished += len(self._buffer.release(self._rank, RELEASE_SECONDS, lives=True))
        except (ActorDied, DeadlineExceeded):
            return None
        finally:
            self._given_back.set()
        return self._unfinished

    def leave_and_end(self) -> int | None:
        """The same, where this process is ended next: before that the driver is told who leaves, and not only that a node
        was lost."""
        unfinished = self.leave()
        self._told.wait(END_SECONDS)
        return unfinished

    def left(self) -> SamplerLeft:
        """What to raise then; waits until everything is given back, or that is given up."""
        self._given_back.wait(2 * (PUT_SECONDS + RELEASE_SECONDS))
        self._told.set()
        groups = f"{self._unfinished} unfinished group{'' if self._unfinished == 1 else 's'}"
        return SamplerLeft(f"sampler {self._rank} is told to go with its pod and has given {groups} back")
