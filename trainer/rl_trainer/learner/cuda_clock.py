"""Marks of what a GPU does, which are read when it has done it: to measure must not have it wait between two passes."""

from __future__ import annotations

from typing import Any

import torch

from rl_trainer.profile.meters import Clock


class CudaClock(Clock):
    """Events in the current stream. That waits for what other streams gather and reduce, which is so in its seconds."""

    def mark(self) -> Any:
        """See `Clock`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """See `Clock`; CUDA counts milliseconds."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
