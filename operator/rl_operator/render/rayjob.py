"""The RayJob of an attempt."""

from __future__ import annotations

from typing import Final

from rl_operator.model.names import Manifest
from rl_operator.plan.effective import Effective
from rl_operator.render.config import CONFIG_KEY
from rl_operator.render.pods import CONFIG_FOLDER, DATA_FOLDER
from rl_operator.render.raycluster import cluster_spec, held_back, ray_metadata

ENTRYPOINT: Final = f"rltrain run {CONFIG_FOLDER}/{CONFIG_KEY} --out {DATA_FOLDER}/run --resume"

NO_HEAD_RESTART: Final = "ray.io/disable-provisioned-head-restart"
"""With a new head KubeRay would submit the job anew by itself: an attempt that nobody counted or fenced."""


def ray_job(effective: Effective, attempt: int) -> Manifest:
    """One attempt. KubeRay submits the job over HTTP: no submitter pod that can fail, and no retries but ours."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": ray_metadata(effective, attempt, {NO_HEAD_RESTART: "true"}),
        "spec": {
            **held_back(effective),
            "submissionMode": "HTTPMode",
            "entrypoint": ENTRYPOINT,
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": cluster_spec(effective, attempt),
        },
    }
