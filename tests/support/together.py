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

# One API server for the others that ask for one, for the same reason, and because one that is idle takes its part of a
# processor, and a gigabyte: it ends with the last of them.
ON_A_CLUSTER: Final = (
    "test_admission_profiles.py",
    "test_admission_services.py",
    "test_chart_install.py",
    "test_cli_cluster.py",
    "test_cli_fleet.py",
    "test_cli_watch.py",
    "test_crd_agreement.py",
    "test_crd_rules.py",
    "test_fuzz.py",
    "test_gang.py",
    "test_kube_apiserver.py",
    "test_operator_line.py",
    "test_operator_loop.py",
    "test_operator_oddities.py",
    "test_operator_replanning.py",
    "test_operator_services.py",
    "test_operator_writes.py",
    "test_prometheus.py",
    "test_scenarios_reader.py",
    "test_tutorials.py",
)


class Together(LoadFileScheduling):
    """`--dist loadfile`, with files that one process must have."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        name = Path(file).name
        if name in ON_A_CLUSTER_WITH_KUEUE:
            return "a cluster with Kueue"
        return "a cluster" if name in ON_A_CLUSTER else file
