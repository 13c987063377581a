"""What a sampler measures of its own work: it goes with the groups, as spans and their arguments."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

from rl_trainer.observe.between_nodes import came_from
from rl_trainer.observe.timeline import ENVIRONMENT, JUDGE, Span, SpanRecorder
from rl_trainer.profile.meters import BusyMeter, ProcessMeter
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.group_rollout import GroupRollout
from rl_trainer.rollout.loop import Rollouts
from rl_trainer.rollout.task_workers import WorkerScorer, WorkerTarget
from rl_trainer.weights.transports.base import Receiver
from rl_trainer.weights.transports.collective import CollectiveReceiver
from rl_trainer.weights.transports.publication import Publication

# A stretch of decoding becomes one row entry of the timeline after this long at the latest.
SPAN_SECONDS = 0.5


class Stretch:
    """Decoding without a pause, with the scoring inside it, which is shown at its end."""

    def __init__(self, engine: Engine, spans: SpanRecorder) -> None:
        self._engine, self._spans = engine, spans
        self._since: float | None = None
        self._score_seconds = 0.0

    def begin(self) -> None:
        """The engine decodes from now on, if it did not before."""
        if self._since is None:
            self._since = time.time()

    def scored(self, seconds: float) -> None:
        """So much of it was scoring."""
        self._score_seconds += seconds

    @property
    def is_long(self) -> bool:
        """Whether it is time to show it."""
        return self._since is not None and time.time() - self._since > SPAN_SECONDS

    def end(self) -> None:
        """Ends the one under way, if there is one."""
        if self._since is None:
            return
        now = time.time()
        scored = min(self._score_seconds, now - self._since)
        self._spans.add("generate", self._since, now - scored, version=self._engine.version)
        if scored:
            self._spans.add("score", now - scored, now)
        self._since, self._score_seconds = None, 0.0


class Waiting:
    """Shows when members of a sampler's groups wait for others, on a row of its own: the sampler decodes meanwhile."""

    def __init__(self, spans: SpanRecorder, name: str) -> None:
        """`name`: of the spans; `spans`: of the row."""
        self._spans, self._name = spans, name
        self._since: float | None = None

    def look(self, waiting: bool) -> None:
        """Whether any member waits now."""
        if waiting and self._since is None:
            self._since = time.time()
        elif not waiting:
            self._end()

    def cut(self) -> list[Span]:
        """Those since the last call, one that goes on until now."""
        if waits := self._since is not None:
            self._end()
        self.look(waits)
        return self._spans.drain()

    def _end(self) -> None:
        if self._since is not None:
            self._spans.add(self._name, self._since, time.time())
            self._since = None


class SamplerMeter:
    """Hands `spans` what `engine`, this process and the workers of the task took, each time a group is finished."""

    def __init__(
        self,
        engine: Engine,
        spans: SpanRecorder,
        simulators: Sequence[WorkerTarget] = (),
        reward_models: Sequence[WorkerScorer] = (),
        gpu: BusyMeter | None = None,
    ) -> None:
        """`gpu`: of its GPU, where it has one."""
        self._engine, self._spans, self._process = engine, spans, ProcessMeter(gpu)
        self._weights, self._cached_token = engine.memory()
        self._simulators, self._reward_models = WorkMeter(simulators), WorkMeter(reward_models)
        sampler = spans.actor_name
        self._environment = Waiting(SpanRecorder(f"environments of {sampler}"), ENVIRONMENT)
        self._judge = Waiting(SpanRecorder(f"reward models of {sampler}"), JUDGE)

    def look(self, rollouts: Rollouts) -> None:
        """Who waits now."""
        self._environment.look(rollouts.waiting_for_tools > 0)
        self._judge.look(rollouts.waiting_for_scores > 0)

    def drain(self, rollouts: Rollouts) -> list[Span]:
        """The sampler's spans since the last call, and those of who waits."""
        self.look(rollouts)
        return self._spans.drain() + self._environment.cut() + self._judge.cut()

    def finished(self, group: GroupRollout) -> None:
        """One more."""
        self._spans.measured(
            **self._engine.meter.drain(),
            **self._process.drain(),
            tool_seconds=group.tool_seconds,
            waits=group.waited.count,
            waited_seconds=group.waited.seconds,
            turns=sum(member.turns for member in group.members),
            simulators=self._simulators.drain(),
            reward_models=self._reward_models.drain(),
            weights=self._weights,
            cache_bytes_per_token=self._cached_token,
            reads_again=self._engine.reads_again,
        )


class WorkMeter:
    """What workers have done for one sampler."""

    def __init__(self, workers: Sequence[WorkerTarget | WorkerScorer]) -> None:
        self._workers = workers
        self._seconds, self._count = 0.0, 0

    def drain(self) -> tuple[float, int, float | None]:
        """Since the last call: seconds that they worked, and for how many turns or completions; and the least `Work.beyond`
        so far, where there was a call."""
        work = [one.work for one in self._workers]  # their threads write it
        seconds, count = sum(one.seconds for one in work), sum(one.count for one in work)
        found = seconds - self._seconds, count - self._count
        self._seconds, self._count = seconds, count
        beyond = min((one.beyond for one in work), default=math.inf)
        return *found, beyond if math.isfinite(beyond) else None


class CountsTaken(Protocol):
    """A store that says how many bytes of weights were taken from it."""

    taken_bytes: int


class WeightsReading:
    """What a sampler reads of each version: from the object store, and from other nodes."""

    def __init__(self, store: CountsTaken, receiver: Receiver, node: str) -> None:
        self._store, self._receiver, self.node = store, receiver, node

    def read(self, published: Publication) -> dict[str, Any]:
        """Of a version that was just loaded, and those that were received since the one before and never loaded."""
        stored, self._store.taken_bytes = self._store.taken_bytes, 0
        broadcast = 0
        if isinstance(self._receiver, CollectiveReceiver):
            broadcast, self._receiver.broadcast_bytes = self._receiver.broadcast_bytes, 0
        elsewhere = came_from(published.node, self.node, stored + broadcast)
        return {"bytes": stored, "node": self.node, "elsewhere": elsewhere}
