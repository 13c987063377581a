"""What an operator is started with: images, ports, defaults of pods. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FIELD_MANAGER: Final = "rltrain-operator"
"""Name under which the operator writes fields of objects."""

FINALIZER: Final = "rltrain.dev/checkpoint"
"""Keeps a deleted run until its last checkpoint is written."""

DNS: Final[Mapping[str, Any]] = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        },
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
    ],
    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
}
"""The cluster's DNS, by the labels that it has nearly everywhere, and the address of its caches on nodes."""


@dataclass(frozen=True)
class Settings:
    """Settings of one operator, the same for all runs."""

    namespace: str = "rltrain-system"
    """Namespace of the operator itself, from which status servers are reached."""

    labels: Mapping[str, str] = field(
        default_factory=lambda: {
            "app.kubernetes.io/name": "rltrain",
            "app.kubernetes.io/component": "operator",
        }
    )
    """Labels of the operator's own pods."""

    kuberay_namespace: str = "kuberay-system"
    kuberay_labels: Mapping[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/component": "kuberay-operator"}
    )
    """Where KubeRay's operator is, and labels of its pods: those that its chart and its plain manifests agree on."""

    dns: Mapping[str, Any] = field(default_factory=lambda: DNS)
    """Rule of a NetworkPolicy, by which pods ask for names."""

    metrics_from: Sequence[Mapping[str, Any]] = ()
    """Who may read metrics of services' pods, as `from` of a NetworkPolicy; empty: nobody."""

    image_cpu: str = "rltrain-trainer:0.1.0-cpu"
    """Trainer image of pools without accelerators, for runs and profiles that name none."""

    image_gpu: str = "rltrain-trainer:0.1.0-gpu"
    """Trainer image of pools with accelerators, for runs and profiles that name none."""

    image_pull_policy: str = "IfNotPresent"
    ray_version: str = "2.60.0"
    status_port: int = 8090
    """Port of the driver's status server where a run leaves the choice."""

    head_cpu: str = "200m"
    """CPU request of a head: driver and buffer compute little."""

    head_memory: str = "2Gi"
    worker_cpu: str = "200m"
    """CPU request of a worker on a CPU pool whose run does not say `resources.cpu`: few, so that a small run fits
    on a small machine. On accelerator pools it is the role's threads."""

    worker_memory: str = "1536Mi"
    accelerator_memory: str = "16Gi"
    """Memory of a worker on an accelerator pool."""

    ephemeral_storage: str = "20Gi"
    """Most that a pod keeps on its node's disk, where neither run nor pool says: model files, copies, logs."""

    accelerator_ephemeral_storage: str = "100Gi"
    """The same of a run with a pool that has accelerators, whose models are larger."""

    cpu_burst: int = 8
    """CPU limit of a pod, as a multiple of the cores that Ray may hand out on it (at least one): what a node has to spare
    makes start and evaluation faster."""

    driver_url: str = "http://{address}:{port}"
    """Where a driver answers. `{address}` is the head pod's; `{namespace}` and `{run}` may be used as well."""
