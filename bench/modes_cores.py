"""A device is a core: actors of a run are pinned to it, and their processor time is watched."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import modes_watch
import ray

from rl_api import RunSpec
from rl_trainer.run import session
from rl_trainer.run.actors import Actors


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
    found: dict[str, Any] = field(default_factory=dict)
    """What was seen of holders of shared cores, as `modes_watch.Watched` has it, `lesser` by name of the actor."""
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
        self.found["lesser"] = {names[pid]: seconds for pid, seconds in self.found["lesser"].items()}


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
