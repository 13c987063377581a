"""How a sampler's process is started, and how it is known to have ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import ray

from rl_api import RunSpec
from rl_api.errors import DeadlineExceeded
from rl_trainer.buffer.handle import Buffer
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.flow.named_class import named_class
from rl_trainer.flow.process_end import END_SECONDS, Process
from rl_trainer.flow.pulse import Watch
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.placement.places import Placement
from rl_trainer.rollout.handle import SamplerHandle
from rl_trainer.rollout.task_workers import TaskWorkers
from rl_trainer.tasks.rows import PromptData


@dataclass(frozen=True)
class SamplerLauncher:
    """Starts samplers; for what they are given see `Samplers`. `data`: a reference to it, as all have the same."""

    spec: RunSpec
    buffer: Buffer
    placement: Placement
    search: Path | None
    data: ray.ObjectRef[PromptData | None]
    workers: TaskWorkers
    watch: Watch | None

    def launch(self, rank: int, node: str | None, model: SharedFolder) -> SamplerHandle:
        """Starts a process for this rank; returns at once. `node`: where that will be, if somebody knows."""
        others = self.placement.other_pods(rank)
        given = (rank, self.spec, model, self.buffer, self.search, self.data, others, self.workers)
        # Five threads: the loop, two calls of the driver, a broadcast, and one of before that is about to give up.
        started = WorkerGroup.launch(
            "sampler",
            named_class("rl_trainer.rollout.actor", "SamplerActor"),
            {rank: given},
            lambda rank: {"max_concurrency": 5, **self.placement.sampler(rank)},
            self.watch,
        )
        ready, run = started.one(rank, "ready").call, started.one(rank, "run").call
        shares = rank < self.spec.shared_samplers
        return SamplerHandle(
            started.actors[rank], run, ready, node or "lost meanwhile", time.monotonic(), shares
        )


def wait_for_end(sampler: str, buffer: Buffer) -> None:
    """Returns when the process of a sampler that was killed has ended, and has its device no more.

    Raises:
        DeadlineExceeded: it is not known to have.
    """
    process: Process | None = buffer.told(sampler)
    if process is not None and not process.end():  # None: it was not about to take the device
        raise DeadlineExceeded(
            f"{sampler}: its process was killed, but is not known to have ended after {END_SECONDS:.0f} s, and may have "
            f"the device that it shares; look for a node or a driver of a device that hangs, then {RESUME_HINT}"
        )
