"""How tests are spread over the processes of pytest-xdist: by file, and files that share a slow start to one process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xdist.scheduler import LoadFileScheduling

# A cluster with Kueue is started once for all of a process: else both processes would start one.
ON_A_CLUSTER_WITH_KUEUE: Final = (
    "test_boosts.py",
    "test_kueue_metrics.py",
    "test_kueue_topology.py",
    "test_kueue_workload.py",
    "test_operator_evictions.py",
)


class Together(LoadFileScheduling):
    """`--dist loadfile`, with files that one process must have."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "a cluster with Kueue" if Path(file).name in ON_A_CLUSTER_WITH_KUEUE else file
