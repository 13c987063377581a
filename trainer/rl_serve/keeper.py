"""Keeps what a service serves from being deleted by the run that goes on training: its pin, beside the run's checkpoints.

The head's own copies (`shelf.py`) end with its pod. The pin outlives it: the next head finds there what the one before had
pinned, so that a policy which is not asked for just now, the one to go back to, stays pinned too.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rl_api.errors import InvalidConfig, RLTrainError
from rl_api.status_fields import MOST
from rl_serve.arguments import PolicyRef
from rl_trainer.checkpoint.manifest import step_of
from rl_trainer.checkpoint.pins import (
    LocalPins,
    Pin,
    Pinned,
    PinPlace,
    RemotePins,
    dump_pin,
    parse_pin,
)
from rl_trainer.error_text import reason
from rl_trainer.storage.remote_folder import RemoteFolder, is_s3

logger = logging.getLogger(__name__)

RENEW_SECONDS: Final = 60.0
# The policy that serves, the one before, and one that both come from in a roll-out; and what is evaluated.
_SERVED: Final = 3
_CANDIDATES: Final = 1
# A bucket that does not answer must not hold up a policy for longer.
_STALLED_SECONDS: Final = 30.0


class Keeper:
    """The pin of one service in the folder of the run that it follows. Any thread may call it.

    Where the pin cannot be written, serving goes on, and `problem` says so.

    Args:
        folder: of the run (checkpoints/ in it), or s3://bucket/folder with its checkpoints; None: there is no run.
        service: the service's name.
        uid: of the service; empty: its name alone tells it from others.
        clock: seconds since 1970.
    """

    def __init__(self, folder: str | None, service: str, uid: str, clock: Callable[[], float]) -> None:
        self._remote = RemoteFolder(folder, stalled=_STALLED_SECONDS) if folder and is_s3(folder) else None
        self._checkpoints = Path(folder or "").absolute() / "checkpoints"
        self._base = None if folder is None else str(self._checkpoints)
        if self._remote is not None:
            self._base = self._remote.uri
        self._service, self._clock = service, clock
        self._name = re.sub(r"[^A-Za-z0-9-]", "-", "-".join(filter(None, (service[:100], uid)))) + ".json"
        self._own: list[Pinned] = []
        self._lock = threading.Lock()
        self._renewed: float | None = None
        self.problem = ""

    def ask(self, policy: PolicyRef, *, candidate: bool = False) -> None:
        """Pin a policy before it is read; `candidate`: it is only evaluated. One that is none of the run is passed over."""
        base, _, name = policy.source.rstrip("/").rpartition("/")
        step = step_of(name)
        if step is None or step > MOST or policy.digest is None or base != self._base:
            return
        with self._lock:
            now = self._clock()
            asked = Pinned(step=step, digest=policy.digest, asked=now, candidate=candidate)
            self._own = last_asked([asked, *self._own], now)
            self._write(now)

    @property
    def due(self) -> bool:
        """Whether the pin is to be renewed."""
        return self._base is not None and (
            self._renewed is None or not 0 <= self._clock() - self._renewed < RENEW_SECONDS
        )

    def renew(self) -> None:
        """Say that the service is still there, if it is due."""
        with self._lock:
            if self.due:
                self._write(self._clock())

    def _write(self, now: float) -> None:
        self._renewed = now
        place = f"{self._base}/.pins"
        try:
            if self._remote is None:
                self._replace(LocalPins(self._checkpoints), now)
            else:
                remote = RemotePins(self._remote)
                self._remote.within(f"{place} cannot be written", lambda: self._replace(remote, now))
            problem = ""
        except OSError as error:
            problem = f"{place} cannot be written ({reason(error)})"
        except RLTrainError as error:
            problem = str(error)
        if problem:
            problem = f"training may delete checkpoints that are served, as they cannot be pinned: {problem}"
        if problem and problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem

    def _replace(self, place: PinPlace, now: float) -> None:
        """The pin anew, with what is in it already: of the head before, or of another one in a roll-out."""
        self._own = last_asked([*self._own, *self._found(place)], now)
        if self._own:
            pin = Pin(service=self._service, renewed=now, checkpoints=self._own)
            place.write(self._name, dump_pin(pin))

    def _found(self, place: PinPlace) -> list[Pinned]:
        try:
            content = place.read(self._name)
            return [] if content is None else list(parse_pin(content).checkpoints)
        except (OSError, InvalidConfig) as error:  # it is written anew
            logger.warning("%s is disregarded: %s", self._name, reason(error))
            return []


def last_asked(found: Iterable[Pinned], now: float) -> list[Pinned]:
    """Which checkpoints are pinned: the served ones that were asked for last, and the last candidate. Pure.

    Whatever claims the future was asked for `now`; of those asked for at one time the first come first. A checkpoint that
    was served and evaluated counts as served.
    """
    known: dict[tuple[int, str], Pinned] = {}
    for one in found:
        before = known.get((one.step, one.digest), one)
        known[one.step, one.digest] = one.model_copy(
            update={
                "asked": min(now, max(one.asked, before.asked)),
                "candidate": one.candidate and before.candidate,
            }
        )
    ordered = sorted(known.values(), key=lambda one: one.asked, reverse=True)
    served = [one for one in ordered if not one.candidate][:_SERVED]
    return served + [one for one in ordered if one.candidate][:_CANDIDATES]
