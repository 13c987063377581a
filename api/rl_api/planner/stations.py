"""Workers of a task as stations of a step: simulators of environments, and models that score. Pure.

Answers come to a station as they end, and wait for a worker that is free; samplers decode meanwhile. Turns of a dialogue are
taken as one piece of work at its end: a step ends no earlier than its simulators have done all of theirs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

from rl_api.planner.profile import RunProfile
from rl_api.run import RunSpec

JUDGE: Final = "reward model"
SIMULATOR: Final = "simulator"
"""What a worker of a kind is called, as by `TaskSpec.workers`."""


@dataclass(frozen=True)
class Served:
    """Seconds at which a worker begins with an answer and is done with it."""

    worker: int
    start: float
    end: float


class Station:
    """Workers that take what comes in its order.

    Args:
        workers: how many; a profile that names none was measured with one.
        seconds: that one of them works for an answer.
        fewer: answers that each stands for; so many workers, or as slow ones, as that takes.
    """

    def __init__(self, workers: int, seconds: float, fewer: float = 1.0) -> None:
        workers = max(1, workers)
        here = max(1, round(workers / fewer))
        self._seconds = seconds * fewer * here / workers
        self._free = [(0.0, worker) for worker in range(here)]

    def serve(self, arrived: float) -> Served:
        """An answer that is there then, behind all that came so far."""
        free, worker = self._free[0]
        start = max(arrived, free)
        end = start + self._seconds
        heapq.heapreplace(self._free, (end, worker))
        return Served(worker, start, end)


class Stations:
    """Those of a profile; `fewer`: see `Station`."""

    def __init__(self, profile: RunProfile, fewer: float = 1.0) -> None:
        devices, size = profile.devices, profile.group_size
        self._tool = profile.tool_seconds
        self._simulators = Station(devices.simulators, profile.simulator_seconds, fewer)
        self._judges = Station(devices.reward_models, profile.judge_seconds / size, fewer)

    def played(self, ended: float) -> float:
        """When the environments of an answer whose last token is there at `ended` have said all."""
        return max(ended + self._tool, self._simulators.serve(ended).end)

    def judged(self, ended: float) -> Served:
        """Who scores such an answer, and when."""
        return self._judges.serve(self.played(ended))

    def scored(self, ended: float) -> float:
        """When such an answer has its score."""
        return self.judged(ended).end


def least_seconds(profile: RunProfile) -> float:
    """Of a step, as long as the busiest of its stations works for it."""
    return max(station_seconds(profile, JUDGE), station_seconds(profile, SIMULATOR))


def station_seconds(profile: RunProfile, kind: str) -> float:
    """That each worker of the kind works in a step."""
    if kind == JUDGE:
        return profile.prompts_per_step * profile.judge_seconds / max(1, profile.devices.reward_models)
    return profile.answers * profile.simulator_seconds / max(1, profile.devices.simulators)


def workers_of(profile: RunProfile, kind: str) -> int:
    """How many the profile has."""
    return profile.devices.reward_models if kind == JUDGE else profile.devices.simulators


def with_workers(profile: RunProfile, kind: str, count: int) -> RunProfile:
    """The same run with `count` (>= 1) workers of a kind that it has. What meets at simulators is divided among them: an
    answer waits for others' turns in proportion."""
    if kind == JUDGE:
        devices = profile.devices.model_copy(update={"reward_models": count})
        return profile.model_copy(update={"devices": devices})
    devices = profile.devices.model_copy(update={"simulators": count})
    queued = profile.queued_seconds * max(1, profile.devices.simulators) / count
    tool = profile.tool_seconds - profile.queued_seconds + queued
    return profile.model_copy(update={"devices": devices, "tool_seconds": tool, "queued_seconds": queued})


def as_many_workers(profile: RunProfile, spec: RunSpec) -> RunProfile:
    """The profile with as many workers of the task as the run has, of the kinds that were measured."""
    workers = {} if spec.given_task is None else spec.given_task.workers
    for kind in (JUDGE, SIMULATOR):
        if kind in workers and workers_of(profile, kind):
            profile = with_workers(profile, kind, workers[kind].replicas)
    return profile


def decoding_alone(profile: RunProfile) -> RunProfile:
    """The profile without the work of such workers."""
    return profile.model_copy(update={"judge_seconds": 0.0, "simulator_seconds": 0.0})
