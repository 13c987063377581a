"""Taking turns on devices: the two sides of a lease that the buffer's actor keeps (`lease_desk.py`).

Learners ask, wait, work and give back (`Turn`). A sampler's loop must never wait: it looks again and again whether the
device is its own (`SharedDevice`), and leaves it where learners want it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

from rl_api import RunSpec
from rl_api.errors import ActorDied, DeadlineExceeded, RLTrainError
from rl_trainer.flow.calls import answer
from rl_trainer.flow.leases import LEARNERS, Wish, device_name
from rl_trainer.flow.process_end import Process
from rl_trainer.observe.timeline import SpanRecorder

# For devices that somebody works on: as long as for a batch or an update.
LEASE_SECONDS = 3600.0
# The actor answers after this long that nobody wants a device; the holder asks again.
POLL_SECONDS = 30.0
# For what the actor answers at once.
ANSWER_SECONDS = 60.0


class Waits(Protocol):
    """Waits for a call as `Samplers.wait_for` does: samplers that die meanwhile, holding a device, are replaced."""

    def __call__(
        self, call: Any, actor: str, phase: str, timeout: float, meanwhile: Callable[[], bool]
    ) -> Any:
        """The call's result."""
        ...


class Turn:
    """The learners' side, for one thread."""

    def __init__(
        self,
        leases: Any,
        devices: Sequence[str],
        wait: Waits,
        spans: SpanRecorder,
        timeout: float = LEASE_SECONDS,
        patience: float = ANSWER_SECONDS,
    ):
        """`leases`: the actor that keeps them; `devices`: those that samplers use as well; `timeout`: seconds to wait for
        them; `patience`: seconds for what the actor answers at once."""
        self._leases, self._devices, self._wait, self._spans = leases, list(devices), wait, spans
        self._timeout, self._patience = timeout, patience
        self._arrive: Callable[[], object] | None = None
        self._leave: Callable[[], object] | None = None
        self._epoch: int | None = None
        self._number = 0  # of the last claim: who gives one up does not wait until that is heard
        self._there = False

    def move(self, arrive: Callable[[], object], leave: Callable[[], object]) -> None:
        """From now on `arrive` is called once the devices are the learners', and `leave` before they are others'."""
        self._arrive, self._leave = arrive, leave

    @contextmanager
    def taken(
        self, phase: str, keep: bool = False, meanwhile: Callable[[], bool] = lambda: False
    ) -> Iterator[str]:
        """Within the block, which is given `phase`, the devices are the learners'. `keep`: and after it, until the next
        block ends. `meanwhile`: see `Samplers.wait_for`.

        Raises:
            DeadlineExceeded: they are not free in time; the sentence names who has them.
            ActorDied: as `Samplers.wait_for`.
        """
        if self._epoch is None:
            with self._spans.span("lease"):
                self._number += 1
                call = self._leases.claim.remote(LEARNERS, self._devices, self._timeout, 1, self._number)
                waits = f"waiting for samplers to leave the devices for {phase}"
                try:
                    self._epoch = self._wait(call, "buffer", waits, self._timeout + ANSWER_SECONDS, meanwhile)
                except BaseException:
                    # Nobody waits for it: the buffer may be what failed.
                    self._leases.give_up.remote(LEARNERS, self._number)
                    raise
        try:
            if not self._there and self._arrive is not None:
                self._arrive()
            self._there = True
            yield phase
            if not keep:
                self._go()
        except BaseException as error:
            if self._has_left_after(error):
                self._leases.give_back.remote(LEARNERS, self._epoch)
                self._epoch = None
            raise
        if not keep:
            call, self._epoch = self._leases.give_back.remote(LEARNERS, self._epoch), None
            answer(call, "buffer", "giving devices back", self._patience)

    def _go(self) -> None:
        self._there = False
        if self._leave is not None:
            self._leave()

    def _has_left_after(self, error: BaseException) -> bool:
        """Whether the devices are free for others now: never where learners do not answer, who may compute there still. With
        one of them dead the others compute nothing any more; where tensors move they cannot be told to take theirs away."""
        if isinstance(error, ActorDied):
            return self._leave is None
        if isinstance(error, DeadlineExceeded) or not isinstance(error, Exception):
            return False
        try:
            self._go()
        except RLTrainError:  # `error` is what is to be told
            return False
        return True


class OwnDevice:
    """What a sampler computes on where nobody else does."""

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody else has it, or wants it: nothing new is begun."""
        return False

    def take_or_leave(self, needed: bool, begun: bool, moves: Callable[[], bool]) -> bool:
        """Asks for the device, or leaves it, where it is time to; whether the sampler may compute now.

        Args:
            needed: whether there is anything to compute; without, others may have the device.
            begun: whether something that is under way can go on now, for which others wait with `drain`; what waits itself,
                for a tool or a score, keeps nobody from the device.
            moves: whether others go on with all that is needed. Else it is computed here though others could have done:
                who left would ask for the device again at once.
        """
        return True

    def close(self) -> None:
        """Nothing is computed any more."""


class SharedDevice(OwnDevice):
    """What a sampler computes on in turn with learners. For one thread, which never waits here; raises as claims do."""

    def __init__(
        self,
        leases: Any,
        rank: int,
        spans: SpanRecorder,
        *,
        drain: bool,
        wake: Callable[[], None],
        arrive: Callable[[], None],
        leave: Callable[[], None],
        timeout: float = LEASE_SECONDS,
    ):
        """The way of a device.

        Args:
            leases: the actor that keeps them.
            rank: the sampler's; its device is that of the learner process of this rank.
            spans: gets the time of waiting.
            drain: where others want it, go on with what is begun for as long as any of it can, else leave at once.
            wake: called from another thread when there is something new.
            arrive, leave: called once the device is the sampler's, and before it is others'.
            timeout: seconds to wait for it.
        """
        self._leases, self._rank, self._spans = leases, rank, spans
        self._holder, self._device = f"sampler {rank}", device_name(rank)
        self._drain, self._wake, self._timeout = drain, wake, timeout
        self._arrive, self._leave = arrive, leave
        self._epoch: int | None = None
        self._claim: Future[int | None] | None = None
        self._claimed = 0.0
        self._look: Future[Wish | None] | None = None
        self._wanted = self._done = self._left = self._over = False
        self._returning: Future[None] | None = None

    @property
    def is_waited_for(self) -> bool:
        """See `OwnDevice`."""
        return self._claim is not None or self._wanted or self._left

    def take_or_leave(self, needed: bool, begun: bool, moves: Callable[[], bool]) -> bool:
        """See `OwnDevice`."""
        self._hear()
        if self._epoch is not None:
            finishes = begun and self._drain
            if not needed or (self._wanted and not finishes) or (self._done and moves()):
                self._give_back()
        if self._epoch is None and needed:
            self._ask()
        self._left = self._left and needed
        return self._epoch is not None

    def close(self) -> None:
        """See `OwnDevice`. What the actor has answered meanwhile is not looked at: a device that it has given is not taken,
        and what it failed with must not be told instead of the reason of the end."""
        self._over = True
        if self._epoch is not None:
            self._give_back()
        elif self._claim is not None:  # it is granted, or may be still
            claim, self._claim = self._claim, None
            claim.add_done_callback(self._return_unused)

    def _return_unused(self, claim: Future[int | None]) -> None:
        if claim.exception() is None and (epoch := claim.result()) is not None:
            self._leases.give_back.remote(self._holder, epoch)

    def _hear(self) -> None:
        """What the actor has answered meanwhile."""
        if self._returning is not None and self._returning.done():
            returned, self._returning = self._returning, None
            returned.result()
        if self._claim is not None and self._claim.done():
            claim, self._claim = self._claim, None
            self._epoch = claim.result()
            self._over, self._left = self._over or self._epoch is None, False
            self._spans.add("lease", self._claimed, time.time())
            if self._epoch is not None:
                self._arrive()
        if self._epoch is None:
            return
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            wish = look.result()
            self._wanted, self._done = wish == "wanted", self._done or wish == "done"
        if self._look is None and not self._wanted:
            # That it is done it is told once for each lease, and then only that others wait.
            helping = None if self._done else self._rank
            call = self._leases.wanted.remote(self._holder, self._epoch, POLL_SECONDS, helping)
            self._look = self._call(call)

    def _ask(self) -> None:
        # One after the other: two calls may be carried out in either order.
        if self._claim is None and self._returning is None and not self._over:
            self._claimed = time.time()
            call = self._leases.claim.remote(self._holder, [self._device], self._timeout)
            self._claim = self._call(call)

    def _give_back(self) -> None:
        self._leave()
        self._left = self._wanted
        self._returning = self._call(self._leases.give_back.remote(self._holder, self._epoch))
        # The look of this lease is answered now, and its answer is nobody's.
        self._epoch, self._look, self._wanted, self._done = None, None, False, False

    def _call(self, call: Any) -> Future[Any]:
        future: Future[Any] = call.future()
        future.add_done_callback(lambda _: self._wake())
        return future


def sampler_device(
    spec: RunSpec,
    rank: int,
    leases: Any,
    spans: SpanRecorder,
    *,
    wake: Callable[[], None],
    arrive: Callable[[], None],
    leave: Callable[[], None],
) -> OwnDevice:
    """What sampler `rank` computes on, as the run's placement says; for the rest see `SharedDevice`."""
    if rank >= spec.shared_samplers:
        return OwnDevice()
    return SharedDevice(
        leases,
        rank,
        spans,
        drain=spec.placement.hand_over == "drain",
        wake=wake,
        arrive=arrive,
        leave=leave,
    )


@contextmanager
def device_for_loading(leases: Any, rank: int) -> Iterator[None]:
    """Within the block sampler `rank`, whose loop has not begun, has the device that it shares; waits for it.

    Raises as `answer` does; DeadlineExceeded names who has it; ActorDied: it gets none, as the run is over or the driver has
    given this process up.
    """
    holder, within = f"sampler {rank}", LEASE_SECONDS + ANSWER_SECONDS
    leases.tell.remote(holder, Process.own())  # who gives it up must know when it is gone
    # What a process before this one asked for may have arrived after its death was told.
    call = leases.claim.remote(holder, [device_name(rank)], LEASE_SECONDS, anew=True)
    epoch = answer(call, "buffer", f"waiting for the device of {device_name(rank)} to load the model", within)
    if epoch is None:
        raise ActorDied(f"{holder}: loads no model, as the run is over, or another process has its place")
    try:
        yield
    finally:
        answer(leases.give_back.remote(holder, epoch), "buffer", "giving a device back", ANSWER_SECONDS)
