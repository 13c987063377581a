"""A device is a core: actors of a run are pinned to it, and their processor time is watched."""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import modes_watch
import ray

from rl_api import RunSpec
from rl_trainer.observe.timeline import Span
from rl_trainer.run import session
from rl_trainer.run.actors import Actors


def core_of(role: str, rank: int, spec: RunSpec) -> int:
    """The core of a learner or sampler: a shared sampler has that of the learner of its rank, the others come after."""
    if role == "learner" or rank < spec.shared_samplers:
        return rank
    return spec.learner.ranks + rank - spec.shared_samplers


HOLDS = {
    "learner": ("train", "log probs", "values", "publish", "onload", "offload"),
    "sampler": ("generate", "score", "load weights", "hand over", "onload", "offload"),
}
"""By role the spans of who has a device that it shares."""


def beside(
    times: Sequence[float],
    seconds: dict[str, list[float]],
    pairs: Sequence[Sequence[str]],
    spans: Sequence[Span],
) -> float:
    """Processor seconds of actors whose device another one has, while that one works there.

    Args:
        times: of looks, seconds since the epoch.
        seconds: by actor, its processor time at each of them.
        pairs: actors that share a core.
        spans: of the run.
    """

    def used(actor: str, at: float) -> float:
        place = bisect.bisect_right(times, at) - 1
        if place < 0 or place + 1 >= len(times):
            return seconds[actor][max(0, place)]
        before, after = seconds[actor][place : place + 2]
        return before + (after - before) * (at - times[place]) / (times[place + 1] - times[place])

    other = {one: another for first, second in pairs for one, another in ((first, second), (second, first))}
    return sum(
        used(other[span.actor], span.end) - used(other[span.actor], span.start)
        for span in spans
        if span.actor in other and span.name in HOLDS[span.actor.split(" ")[0]]
    )


def _pin(_: Any, core: int) -> int:
    """Within an actor: all its threads, and those to come, on one core. Returns the process."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), {core})
    return os.getpid()


@dataclass
class Cores:
    """Where the actors of the run that was started last are: `pids` by name and core."""

    watch: bool = False
    pids: dict[tuple[str, int], int] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    """What was seen of holders of shared cores, as `modes_watch.Watched` has it, but by name of the actor."""
    _watcher: subprocess.Popen[str] | None = None

    def pin(self, spec: RunSpec, actors: Actors) -> None:
        """All learners and samplers of a run that has just started."""
        workers = {("learner", rank): actor for rank, actor in enumerate(actors.learners.actors)}
        group = actors.samplers.workers
        workers |= {("sampler", rank): actor for rank, actor in group.actors.items()}
        cores = {(role, rank): core_of(role, rank, spec) for role, rank in workers}
        calls = [worker.__ray_call__.remote(_pin, cores[name]) for name, worker in workers.items()]
        found = ray.get(calls, timeout=60)
        self.pids = {
            (f"{role} {rank}", cores[role, rank]): pid
            for (role, rank), pid in zip(workers, found, strict=True)
        }
        if self._watcher is not None:
            shared: dict[int, list[int]] = {}
            for (_, core), pid in self.pids.items():
                shared.setdefault(core, []).append(pid)
            line = json.dumps({core: pids for core, pids in shared.items() if len(pids) == 2})
            assert self._watcher.stdin is not None
            self._watcher.stdin.write(line + "\n")
            self._watcher.stdin.flush()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within the block processor times of holders of the same core are compared, if `watch`."""
        self.found, self.pids = {}, {}
        if not self.watch:
            yield
            return
        with subprocess.Popen(
            [sys.executable, str(Path(modes_watch.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as self._watcher:
            try:
                yield
            finally:
                said, _ = self._watcher.communicate()  # which closes its input
                self._watcher = None
        names = {str(pid): name for (name, _), pid in self.pids.items()}
        self.found = json.loads(said)
        for name in ("lesser", "seconds"):
            self.found[name] = {names[pid]: value for pid, value in self.found[name].items()}

    def held(self, spans: Sequence[Span]) -> dict[str, Any]:
        """What was found of the run whose spans these are, with `beside`, without single looks."""
        if not self.found:
            return {}
        cores: dict[int, list[str]] = {}
        for name, core in self.pids:
            cores.setdefault(core, []).append(name)
        pairs = [names for names in cores.values() if len(names) == 2]
        found = dict(self.found)
        times, seconds = found.pop("times"), found.pop("seconds")
        return found | {"beside": beside(times, seconds, pairs, spans)}


@contextlib.contextmanager
def pinned(cores: Cores) -> Iterator[None]:
    """Runs that start within the block have their actors pinned, before they sample."""

    class PinnedActors(Actors):
        @classmethod
        def start(cls, spec: RunSpec, *arguments: Any, **options: Any) -> Actors:
            actors = Actors.start(spec, *arguments, **options)
            cores.pin(spec, actors)
            return actors

    original, session.Actors = session.Actors, PinnedActors  # type: ignore[misc]
    try:
        yield
    finally:
        session.Actors = original  # type: ignore[misc]
