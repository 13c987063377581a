"""Ray's autoscaler, where KubeRay demands one and none is wanted.

KubeRay takes a RayService whose traffic moves in steps only with `enableInTreeAutoscaling`, which puts Ray's autoscaler into
the head's pod. It would need a token with which the pods of the cluster can be changed, in an image of the tenant's, and it
would scale what the operator scales. So the container is there, and what it runs instead of `ray` waits for its end.
"""

from __future__ import annotations

from typing import Final

from rl_operator.model.names import Manifest
from rl_operator.render.pods import NO_DEVICES

_FOLDER: Final = "/opt/rltrain-autoscaler"
_ANNOTATION: Final = "rltrain.dev/autoscaler"
_SCRIPT: Final = """#!/bin/bash
echo "the number of pods follows the RLPolicyService: Ray's autoscaler has nothing to do here"
trap 'exit 0' TERM INT
sleep infinity & wait
"""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def idle_autoscaler(head: Manifest) -> Manifest:
    """Fields of a RayCluster with such an autoscaler; adds to `head`, the template of its pod, what that one runs."""
    metadata = head["metadata"]
    metadata["annotations"] = {**metadata.get("annotations", {}), _ANNOTATION: _SCRIPT}
    field = {"fieldPath": f"metadata.annotations['{_ANNOTATION}']"}
    items = [{"path": "ray", "mode": 0o555, "fieldRef": field}]
    head["spec"]["volumes"].append({"name": "autoscaler", "downwardAPI": {"items": items}})
    container = head["spec"]["containers"][0]
    environment = {"PATH": f"{_FOLDER}:{_PATH}", **NO_DEVICES}
    return {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "imagePullPolicy": container["imagePullPolicy"],
            "resources": {
                "requests": {"cpu": "10m", "memory": "16Mi"},
                "limits": {"cpu": "100m", "memory": "64Mi"},
            },
            "securityContext": container["securityContext"],
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "volumeMounts": [{"name": "autoscaler", "mountPath": _FOLDER, "readOnly": True}],
        },
    }
