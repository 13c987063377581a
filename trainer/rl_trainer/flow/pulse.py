"""Signs of life: who stands still (stopped, swapping, cut off with its node) never ends its calls, and Ray sees only deaths.

Every actor tells the buffer, on a thread of its own, that it lives, whatever its other threads do. While the driver waits
for anything it asks the buffer who has not: one call, whatever the number of actors. By the same way an actor tells what
is to be known while it is busy, and cannot be asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from rl_trainer.error_text import RESUME_HINT

BUFFER = "buffer"
# For the buffer's answer, which takes milliseconds; one that takes longer is read at the next look.
_ANSWER_SECONDS = 0.1
# Until the first sign of an actor that was launched, besides `Pulse.limit`: Ray gives a process as long to start, which
# imports what it needs then.
START_SECONDS = 60.0


@dataclass(frozen=True)
class Pulse:
    """The actor's side. `buffer`: Ray's handle to the buffer; `limit`: seconds without a sign after which one is silent."""

    buffer: Any
    limit: float

    @property
    def every(self) -> float:
        """Seconds from one sign to the next."""
        return self.limit / 6

    def expect(self, name: str) -> None:
        """The driver launches `name`, whose process is to `begin`. One that never does is silent after `limit` and
        `START_SECONDS`: it may be stopped before it can tell anything."""
        self.buffer.expect.remote(name, START_SECONDS)

    def begin(self, name: str) -> None:
        """From now on `name` gives signs of life, until its process ends."""
        threading.Thread(target=self._go_on, args=(name,), name="signs of life", daemon=True).start()

    def tell(self, name: str, said: Any) -> None:
        """The driver is to know what `name` says, whenever it listens; see `Watch.told`. From any thread."""
        self.buffer.tell.remote(name, said)

    def _go_on(self, name: str) -> None:
        while True:
            self.buffer.beat.remote(name)  # nobody waits for it: a buffer that is gone is others' concern
            time.sleep(self.every)


class Watch:
    """The driver's side: who is silent."""

    def __init__(self, pulse: Pulse, clock: Callable[[], float] = time.monotonic):
        self.pulse, self._clock = pulse, clock
        self._asked: Any = None
        self._listening: Any = None
        self._since = self._looked = clock()
        self._named: frozenset[str] = frozenset()
        self._unheard: frozenset[str] = frozenset()

    def told(self) -> Mapping[str, Any]:
        """The last that each actor has told (`Pulse.tell`), where the buffer says so at once; else nothing, and the next
        call may know. To be called again and again while something is waited for."""
        if self._listening is None:
            self._listening = self.pulse.buffer.told.remote()
        if not ray.wait([self._listening], timeout=_ANSWER_SECONDS)[0]:
            return {}
        listened, self._listening = self._listening, None
        try:
            found: Mapping[str, Any] = ray.get(listened, timeout=0)
        except RayError:  # it has died, which whoever needs it says
            return {}
        return found

    def look(self) -> frozenset[str]:
        """Those who are silent now. To be called again and again while something is waited for, every `pulse.every` seconds.

        Named are those who were silent at two looks: a buffer that was stopped itself answers before it reads the signs
        that came meanwhile.
        """
        now = self._clock()
        if now - self._looked > self.pulse.limit / 2:
            # This process was elsewhere, or stopped itself: it does not know how long an answer has taken.
            self._since = now
        self._looked = now
        if self._asked is None:
            self._asked, self._since = self.pulse.buffer.silent.remote(self.pulse.limit), now
        if not ray.wait([self._asked], timeout=_ANSWER_SECONDS)[0]:
            return frozenset({BUFFER}) if now - self._since >= self.pulse.limit else frozenset()
        try:
            said: Mapping[str, bool] = ray.get(self._asked, timeout=0)
        except RayError:  # it has died, which whoever needs it says
            said = {}
        found = frozenset(said)
        self._unheard = frozenset(name for name, heard in said.items() if not heard)
        named, self._named, self._asked = found & self._named, found, None
        return named

    def silence(self, actor: str, phase: str) -> str:
        """What is said of an actor that the last look has named."""
        limit = self.pulse.limit
        since = f"no sign of life for {limit:g} s (retry.livenessTimeout)"
        if actor in self._unheard:
            since = (
                f"not one sign of life since it was launched, more than {limit + START_SECONDS:g} s ago "
                f"(retry.livenessTimeout, and {START_SECONDS:g} s to start)"
            )
        return (
            f"{actor}: {since} while {phase}; its process is stopped or hangs, or its node is overloaded or cut off; "
            f"{RESUME_HINT}"
        )
