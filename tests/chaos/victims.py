"""The processes of a run, by the titles that Ray gives them, and what the run is doing, as it shows itself outside."""

from __future__ import annotations

import contextlib
import json
import math
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

_TITLES: Final = {"sampler": "ray::SamplerActor", "rank": "ray::LearnerActor", "buffer": "ray::BufferActor"}
_WRITES_A_CHECKPOINT: Final = (".saved", ".begin_save", ".save_round", ".save_written", ".random_state")
_TRAINS: Final = (".update", ".accumulate", ".apply")
_MOVES: Final = (".offload", ".onload")
_LOADS: Final = (".__init__", ".check_stored", ".start")
_RESTORES: Final = (".restore",)
_LOOK_SECONDS: Final = 0.001
_COUNT_SECONDS: Final = 0.1
"""Between two looks which processes there are: it takes a while where there are many."""

_STATUS_SECONDS: Final = 0.01
"""Between two questions to the status server: it must not be what the run is busy with."""

REWARD: Final = """
import json, os, time
from pathlib import Path

HERE = Path(__file__).parent

def reward(prompt, completion, answer):
    mark = HERE / "scoring" / str(os.getpid())
    mark.touch()
    time.sleep(json.loads((HERE / "moods.json").read_text())["delay"])
    mark.unlink(missing_ok=True)
    return len(set(completion)) / 6
"""
"""A reward that takes a moment, and leaves a mark meanwhile."""


class Victims:
    """Driver and actors of one start of a run."""

    def __init__(self, driver: int):
        self.driver = driver
        self._learners: list[int] = []

    def all(self) -> dict[int, str]:
        """Titles of all processes of the run, by id."""
        with contextlib.suppress(psutil.NoSuchProcess):
            ours = psutil.Process(self.driver)
            return {one.pid: title_of(one.pid) for one in (ours, *ours.children(recursive=True))}
        return {}

    def of(self, target: str) -> list[int]:
        """Ids of those of one kind, in order."""
        if target == "driver":
            return [self.driver]
        return sorted(pid for pid, title in self.all().items() if title.startswith(_TITLES[target]))

    def learners(self) -> list[str]:
        """What the learners are doing, in their titles."""
        if not self._learners or not all(map(is_alive, self._learners)):
            self._learners = self.of("rank")
        return [title_of(pid) for pid in self._learners]


class Phases:
    """What a run does now, looked at from outside. `out`: its folder; `address`: of its status server."""

    def __init__(self, victims: Victims, out: Path, address: Callable[[], str | None]):
        self._victims, self._out, self._address = victims, out, address
        self.late, self.target = False, "driver"
        self.begin()

    def begin(self) -> None:
        """What was seen before does not count."""
        self._since, self._trained = time.time(), False
        self._asked, self._evaluates = 0.0, False
        self._counted, self._there = 0.0, False
        self._loading: list[int] = []

    def wait(self, phase: str, seconds: float, alive: Callable[[], bool]) -> bool:
        """Returns as the phase begins, or goes on; False: it has not come in time, or the run has ended."""
        self.begin()
        deadline = time.monotonic() + seconds
        look = getattr(self, phase)
        while not look():
            if time.monotonic() > deadline or not alive():
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def train(self) -> bool:
        """A learner is in its step."""
        return any(title.endswith(_TRAINS) for title in self._victims.learners())

    def move(self) -> bool:
        """Learners move their tensors onto or off a device."""
        return any(title.endswith(_MOVES) for title in self._victims.learners())

    def resume(self) -> bool:
        """The process that is to be hit is there, and the run loads: model and task or, where it is to be `late`, all else
        that a checkpoint holds."""
        if time.monotonic() - self._counted > _COUNT_SECONDS:
            self._loading = [*self._victims.of("rank"), *self._victims.of("sampler")]
            self._there = bool(self._victims.of(self.target))
            self._counted = time.monotonic()
        # Restoring takes moments: what follows it at once counts as well.
        awaited = (*_RESTORES, ".publish", *_TRAINS) if self.late else _LOADS
        return self._there and any(title_of(pid).endswith(awaited) for pid in self._loading)

    def publish(self) -> bool:
        """A step has just ended, or weights are made for it: now they go to the samplers."""
        training = self.train()
        ended, self._trained = self._trained and not training, training
        return ended or any(title.endswith(".publish") for title in self._victims.learners())

    def checkpoint(self) -> bool:
        """One is being written."""
        if any(title.endswith(_WRITES_A_CHECKPOINT) for title in self._victims.learners()):
            return True
        return any((self._out / "checkpoints").glob(".tmp-*"))

    def score(self) -> bool:
        """A reward is being asked."""
        with contextlib.suppress(FileNotFoundError):
            return any(
                mark.stat().st_mtime >= self._since for mark in (self._out.parent / "scoring").iterdir()
            )
        return False

    def generate(self) -> bool:
        """Nothing else goes on."""
        idle = all(title == _TITLES["rank"] for title in self._victims.learners())
        return idle and not (self.checkpoint() or self.score() or self.evaluate())

    def evaluate(self) -> bool:
        """Held-out prompts are answered: the run says so itself."""
        if time.monotonic() - self._asked > _STATUS_SECONDS and (address := self._address()) is not None:
            with (
                contextlib.suppress(OSError, ValueError),
                urllib.request.urlopen(address, timeout=1.0) as answer,
            ):
                self._evaluates = json.load(answer)["phase"] == "Evaluating"
            self._asked = time.monotonic()
        return self._evaluates


class Death:
    """How long what a process had stays its own after its death. `over`: whether it has been given to others."""

    def __init__(self, pid: int, over: Callable[[], bool]):
        self._pid, self._over = pid, over
        self._died: float | None = None
        self.seconds = math.nan

    def look(self) -> bool:
        """To be called often; whether `seconds` are known."""
        if self._died is None and not is_alive(self._pid):
            self._died = time.monotonic()
        if self._died is not None and math.isnan(self.seconds) and self._over():
            self.seconds = time.monotonic() - self._died
        return not math.isnan(self.seconds)


def title_of(pid: int) -> str:
    """What a process calls itself; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
