"""The highest memory of a process between two points: of its GPU what torch has allocated, on a CPU what is resident."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]
from worker_head import resident, start_high_water

from gpu_lane.job import Job

OVER_PLAN = 1.10
"""Most that it may be of what `rltrain plan` reckons."""
SMALL_MODEL = 10**8
"""Parameters of models below which it is all libraries' own, and not held against the plan."""


class Peak:
    """Begins when it is made."""

    def __init__(self, job: Job) -> None:
        self._gpu = job.device == "cuda"
        if self._gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self._before = 0  # the allocator knows what is whose: all of it is ours
        else:
            self._before = start_high_water()

    def bytes(self) -> int:
        """The highest so far, without what a process on a CPU had before."""
        if self._gpu:
            import torch

            return int(torch.cuda.max_memory_allocated())
        return resident("VmHWM") - self._before


def device_memory(job: Job) -> int:
    """Bytes of one GPU, or those of this machine that are free for processes on its CPUs."""
    if job.device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[1])
    return int(psutil.virtual_memory().available)
