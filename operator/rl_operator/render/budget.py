"""PodDisruptionBudget of a run: which pods must not be moved for maintenance."""

from __future__ import annotations

from rl_operator.model.names import HEAD, LEARNER, ROLE_LABEL, RUN_LABEL, Manifest
from rl_operator.plan.effective import Effective


def disruption_budget(effective: Effective) -> Manifest:
    """Keeps head and learners: losing one ends the attempt. Samplers may go; others take over."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": effective.metadata(effective.name),
        "spec": {
            # A number of pods: a share, or how many may go, Kubernetes can tell for its own workloads only.
            "minAvailable": sum(role.replicas for role in effective.roles if role.name in (HEAD, LEARNER)),
            "selector": {
                "matchLabels": {RUN_LABEL: effective.name},
                "matchExpressions": [{"key": ROLE_LABEL, "operator": "In", "values": [HEAD, LEARNER]}],
            },
        },
    }
