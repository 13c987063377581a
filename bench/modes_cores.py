"""A device is a core: actors of a run are pinned to it, and their processor time is watched."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from rl_api import RunSpec
from rl_trainer.run import session
from rl_trainer.run.actors import Actors

LOOK_SECONDS = 0.001


def core_of(role: str, rank: int, spec: RunSpec) -> int:
    """The core of a learner or sampler: a shared sampler has that of the learner of its rank, the others come after."""
    if role == "learner" or rank < spec.shared_samplers:
        return rank
    return spec.learner.ranks + rank - spec.shared_samplers


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
    overlap: float = 0.0
    """Seconds of processor time for which two holders of a core worked in the same `LOOK_SECONDS`: the lesser one."""
    total: float = 0.0
    """Seconds of processor time of holders of shared cores, all together."""

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

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within the block processor times of holders of the same core are compared, if `watch`."""
        self.overlap = self.total = 0.0
        self.pids = {}
        over = threading.Event()
        thread = threading.Thread(target=self._look, args=(over,), daemon=True)
        if self.watch:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if self.watch:
                thread.join()

    def _look(self, over: threading.Event) -> None:
        before: dict[int, dict[int, float]] = {}
        while not over.wait(LOOK_SECONDS):
            shared: dict[int, dict[int, float]] = {}
            for (_, core), pid in list(self.pids.items()):
                with contextlib.suppress(OSError):
                    shared.setdefault(core, {})[pid] = processor_seconds(pid)
            for core, now in shared.items():
                earlier = before.get(core, {})
                spent = sorted(now[pid] - earlier[pid] for pid in now if pid in earlier)
                if len(spent) == 2:
                    self.overlap += spent[0]
                    self.total += sum(spent)
            before = shared


def processor_seconds(pid: int) -> float:
    """Of all threads of a process so far, from its CPU clock (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


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
