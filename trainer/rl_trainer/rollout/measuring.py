"""What a sampler measures of its own work: it goes with the groups, as spans and their arguments."""

from __future__ import annotations

import time

from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.profile.meters import ProcessMeter
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.group_rollout import GroupRollout

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


class SamplerMeter:
    """Hands `spans` what `engine` and this process took, each time a group is finished."""

    def __init__(self, engine: Engine, spans: SpanRecorder) -> None:
        self._engine, self._spans, self._process = engine, spans, ProcessMeter()
        self._weights, self._cached_token = engine.memory()

    def finished(self, group: GroupRollout) -> None:
        """One more."""
        self._spans.measured(
            **self._engine.meter.drain(),
            **self._process.drain(),
            tool_seconds=group.tool_seconds,
            turns=sum(member.turns for member in group.members),
            score_seconds=group.awaited_seconds,
            weights=self._weights,
            cache_bytes_per_token=self._cached_token,
            reads_again=self._engine.reads_again,
        )
