"""What an operator is started with: images, ports, defaults of pods. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIELD_MANAGER: Final = "rltrain-operator"
"""Name under which the operator writes fields of objects."""

FINALIZER: Final = "rltrain.dev/checkpoint"
"""Keeps a deleted run until its last checkpoint is written."""


@dataclass(frozen=True)
class Settings:
    """Settings of one operator, the same for all runs."""

    namespace: str = "rltrain-system"
    """Namespace of the operator itself, from which status servers and dashboards are reached."""

    image_cpu: str = "rltrain-trainer:0.1.0-cpu"
    """Trainer image of pools without accelerators, for runs and profiles that name none."""

    image_gpu: str = "rltrain-trainer:0.1.0-gpu"
    """Trainer image of pools with accelerators, for runs and profiles that name none."""

    image_pull_policy: str = "IfNotPresent"
    ray_version: str = "2.60.0"
    status_port: int = 8090
    """Port of the driver's status server where a run leaves the choice."""

    head_cpu: str = "200m"
    """CPU request of a head: driver and buffer compute little, and a limit would only slow them down."""

    head_memory: str = "2Gi"
    worker_cpu: str = "200m"
    """CPU request of a worker on a CPU pool whose run does not say `resources.cpu`: few, so that a small run fits
    on a small machine. On accelerator pools it is the role's threads."""

    worker_memory: str = "1536Mi"
    accelerator_memory: str = "16Gi"
    """Memory of a worker on an accelerator pool."""

    driver_url: str = "http://{service}.{namespace}.svc:{port}"
    """Where a driver answers. `{service}` is the Ray head's service; `{run}` may be used as well."""
