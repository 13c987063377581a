"""Kueue's own metrics that dashboards and alerts ask for: held against the page of a real Kueue.

Those of quotas are there where Kueue's configuration has `metrics.enableClusterQueueResources: true`.
"""

from __future__ import annotations

from typing import Final

_QUOTA: Final = frozenset({"cohort", "cluster_queue", "flavor", "resource", "replica_role"})

KUEUE: Final[dict[str, frozenset[str]]] = {
    "kueue_cluster_queue_nominal_quota": _QUOTA,
    "kueue_cluster_queue_resource_reservation": _QUOTA,
    "kueue_cluster_queue_resource_pending": frozenset({"cluster_queue", "resource", "replica_role"}),
}
"""Labels by name."""
