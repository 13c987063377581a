"""The handle to the buffer's actor, by which its callers know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import ray

from rl_trainer.buffer.actor import Batch, BufferActor
from rl_trainer.buffer.groups import BufferConfig, Handed, Ticket
from rl_trainer.buffer.payloads import fetch_payloads, referred, to_send
from rl_trainer.flow.calls import answer
from rl_trainer.trajectory import Group

ANSWER_SECONDS = 60.0  # for calls that the actor answers at once
# Each sampler's `acquire` waits in the actor. Ray's own limit is 1,000 calls at a time: with as many samplers waiting, the
# `put` that would give one of them work would wait as well.
CONCURRENT_CALLS = 100_000


class Buffer:
    """Handle to a buffer actor: picklable, usable from any process; every call has a deadline.

    Methods whose name ends in `_ref` return Ray's reference instead of waiting, for callers with an event
    loop of their own (a sampler between two decode steps); `Buffer.result` turns it into the value.
    """

    def __init__(self, actor: Any, patience: float = ANSWER_SECONDS) -> None:
        self.actor, self.patience = actor, patience

    @classmethod
    def create(cls, config: BufferConfig, patience: float = ANSWER_SECONDS, **options: Any) -> Buffer:
        """Start the actor, which takes no CPU.

        Args:
            config: what it may do.
            patience: seconds after which calls that it answers at once are given up.
            options: Ray's (name, scheduling_strategy, ...).
        """
        return cls(
            ray.remote(BufferActor)
            .options(**{"num_cpus": 0, "max_concurrency": CONCURRENT_CALLS, **options})
            .remote(config),
            patience,
        )

    def __reduce__(self) -> Any:
        return (Buffer, (self.actor, self.patience))

    @staticmethod
    def result(ref: Any, phase: str, timeout: float = ANSWER_SECONDS) -> Any:
        """The value of a `_ref` call. Raises DeadlineExceeded, ActorDied or the buffer's own error."""
        return answer(ref, "the buffer", phase, timeout)

    def _answer(self, ref: Any, phase: str) -> Any:
        """Of what is answered at once."""
        return self.result(ref, phase, self.patience)

    def register(self, sampler: int) -> None:
        """A sampler (rank 0, 1, ...) is ready for work; tickets of its former life go back."""
        self._answer(self.actor.register.remote(sampler), "registering a sampler")

    def release(self, sampler: int, timeout: float | None = None, lives: bool = False) -> list[int]:
        """A sampler is gone, or about to go where it `lives`; returns the group ids that will be reissued."""
        call = self.actor.release.remote(sampler, lives)
        return cast(list[int], self.result(call, "releasing a sampler", timeout or self.patience))

    def acquire_ref(self, sampler: int, max_groups: int, timeout: float, known_version: int = -1) -> Any:
        """Tickets for up to `max_groups` groups, as `Acquired`: none where there were none for `timeout` seconds."""
        return self.actor.acquire.remote(sampler, max_groups, timeout, known_version)

    def put_ref(self, sampler: int, groups: Iterable[Group], said: dict[str, Any] | None = None) -> Any:
        """Hands in finished groups, answered when they no longer depend on this process; until then the caller keeps the
        reference. The answer has a `PutResult` for each. `said`: see `payloads.py`."""
        return self.actor.put.remote(sampler, referred(groups, said))

    def hand_over(
        self,
        sampler: int,
        groups: Iterable[Handed],
        stay: Sequence[Ticket] = (),
        said: dict[str, Any] | None = None,
    ) -> list[int]:
        """Gives groups that this sampler has begun to others; on return they no longer depend on it. Those of `stay` it ends
        itself, whoever has its device. Returns the ids of those that were still its own. `said`: see `payloads.py`."""
        call = self.actor.hand_over.remote(sampler, referred(groups, said), _bare(stay))
        return cast(list[int], self._answer(call, "handing groups over"))

    def owned(self, sampler: int, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Those of `tickets` that are still this sampler's: others have the rest."""
        kept = self._answer(
            self.actor.owned.remote(sampler, _bare(tickets)), "looking whose tickets these are"
        )
        numbers = {one.issue for one in kept}
        return [one for one in tickets if one.issue in numbers]

    def waits(self, holder: str) -> bool:
        """Whether it waits for a device that it shares."""
        return cast(bool, self._answer(self.actor.waits.remote(holder), "looking who waits for a device"))

    def told(self, name: str) -> Any:
        """The last that the actor of this name has told unasked; None: nothing."""
        return self._answer(self.actor.told.remote(), "looking what was told").get(name)

    def drop(self, sampler: int, group_id: int, reason: str) -> bool:
        """Give a group up for good; the reason is counted. False if the sampler no longer holds it."""
        return cast(bool, self._answer(self.actor.drop.remote(sampler, group_id, reason), "dropping a group"))

    def publish(self, version: int, weights: Any) -> None:
        """Publish weights (usually `[reference]`) under the next version."""
        self._answer(self.actor.publish.remote(version, weights), "publishing weights")

    def take_ref(self, timeout: float, begin: int = 0, end: int | None = None) -> Any:
        """See `take`."""
        return self.actor.take.remote(timeout, begin, end)

    def take(self, timeout: float, begin: int = 0, end: int | None = None) -> Batch:
        """The next batch, or the one still under lease, or a part of it. Raises DeadlineExceeded saying what is missing."""
        ref = self.take_ref(timeout, begin, end)
        return cast(Batch, self.result(ref, "taking a batch", timeout + ANSWER_SECONDS))

    def finish_step(self, step: int, version: int | None, weights: Any) -> dict[str, Any]:
        """The batch of `step` is trained: forget it, publish weights where there is a version, and return the metrics."""
        ref = self.actor.finish_step.remote(step, version, weights)
        return cast(dict[str, Any], self._answer(ref, "ending a step"))

    def snapshot(self) -> tuple[dict[str, Any], list[Any]]:
        """`(JSON-able state, payloads as bytes)` for a checkpoint."""
        state, payloads = self._answer(self.actor.snapshot.remote(), "taking the buffer's snapshot")
        return state, [bytes(data) for data in fetch_payloads(payloads)]

    def restore(self, state: Mapping[str, Any], payloads: Sequence[bytes]) -> None:
        """Load a snapshot into this (fresh) buffer, before samplers register."""
        self._answer(self.actor.restore.remote(state, to_send(payloads)), "restoring the buffer")

    def stop(self) -> None:
        """End of the run: samplers get `stop`."""
        self._answer(self.actor.stop.remote(), "stopping the buffer")


def _bare(tickets: Iterable[Ticket]) -> list[Ticket]:
    """Without what was begun, which the buffer has."""
    return [replace(one, begun=None) for one in tickets]
