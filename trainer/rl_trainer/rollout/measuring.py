"""What a sampler measures of its own work: it goes with the groups, as the arguments of a span."""

from __future__ import annotations

from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.profile.meters import ProcessMeter
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.loop import GroupRollout


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
            weights=self._weights,
            cache_bytes_per_token=self._cached_token,
        )
