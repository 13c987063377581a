"""The one place that renders a pod."""

from __future__ import annotations

from typing import Any, Final

from rl_operator.model.names import (
    HEAD,
    LEARNER,
    RAY_PORTS,
    STATUS_PORT,
    Manifest,
    attempt_name,
    folder_name,
    pod_labels,
    secret_name,
)
from rl_operator.plan.effective import Effective
from rl_operator.plan.pools import accelerator_resources, pod_placement
from rl_operator.plan.roles import Role
from rl_operator.render.config import CONFIG_KEY, TOKEN_KEY

CONFIG_FOLDER: Final = "/etc/rltrain"
DATA_FOLDER: Final = "/var/lib/rltrain"
CONTAINER: Final = "ray"
"""The Ray container: KubeRay takes the first one for it, and there is no other."""

_USER: Final = 1000
_POD: Final = "RLTRAIN_POD"
_AGENT_PORT: Final = 52365
"""Where each Ray node answers whether it is well."""


def pod_template(effective: Effective, role: Role, attempt: int) -> Manifest:
    """The pod template of one role. Passes Pod Security `restricted`; holds no Kubernetes credentials."""
    labels = pod_labels(effective.name, attempt, role.name)
    container: Manifest = {
        "name": CONTAINER,
        "image": role.image,
        "imagePullPolicy": effective.settings.image_pull_policy,
        "env": _environment(effective, role, attempt),
        "resources": _resources(role),
        # KubeRay's own begins after ten seconds, and everything waits for it: half of the time that Ray takes to start.
        "readinessProbe": {
            "httpGet": {"path": "/api/healthz", "port": _AGENT_PORT},
            "initialDelaySeconds": 1,
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 15,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    if effective.spec.secrets:
        # What `env` says has precedence: no Secret changes what rltrain tells its processes.
        container["envFrom"] = [{"secretRef": {"name": name}} for name in effective.spec.secrets]
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # Changing the owner of every file of a large checkpoint volume would take minutes at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
        **pod_placement(role.pools),
    }
    if effective.spec.scheduling.priority_class is not None:
        spec["priorityClassName"] = effective.spec.scheduling.priority_class
    if role.name == HEAD:
        _add_head_parts(effective, attempt, spec, container)
    # Where workers write too, the claim must be one that several nodes can mount.
    if role.name == HEAD or (effective.backend.workers_write and effective.claim is not None):
        _add_storage(effective, spec, container)
    return {"metadata": {"labels": labels}, "spec": spec}


def _add_storage(effective: Effective, spec: Manifest, container: Manifest) -> None:
    data: Manifest = {"name": "data", "mountPath": DATA_FOLDER}
    if effective.claim is not None:
        # Of its own for each run, so that several can share a claim.
        data["subPath"] = folder_name(effective.name, effective.uid)
    storage: Manifest = (
        {"persistentVolumeClaim": {"claimName": effective.claim}} if effective.claim else {"emptyDir": {}}
    )
    container["volumeMounts"].append(data)
    spec["volumes"].append({"name": "data", **storage})


def _add_head_parts(effective: Effective, attempt: int, spec: Manifest, container: Manifest) -> None:
    """The head runs the driver: only it reads the run, serves the status and keeps checkpoints."""
    # A head that comes back has lost the run's actors: a lost head ends the attempt, and a new one begins.
    spec["restartPolicy"] = "Never"
    ports = RAY_PORTS | {STATUS_PORT: effective.status_port}
    container["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    container["volumeMounts"].append({"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True})
    spec["volumes"].append(
        {
            "name": "config",
            "configMap": {
                "name": attempt_name(effective.name, attempt),
                "items": [{"key": CONFIG_KEY, "path": CONFIG_KEY}],
            },
        }
    )


def _environment(effective: Effective, role: Role, attempt: int) -> list[Manifest]:
    values = {
        "RLTRAIN_RUN": effective.name,
        "RLTRAIN_NAMESPACE": effective.namespace,
        "RLTRAIN_ATTEMPT": str(attempt),
    }
    if role.name != HEAD:
        return [{"name": name, "value": value} for name, value in values.items()]
    values |= {"RLTRAIN_STATUS_HOST": "0.0.0.0", "RLTRAIN_PLAIN": "1"}
    values |= effective.backend.environment(
        effective.role(LEARNER).accelerators if effective.has(LEARNER) else 0
    )
    # No two heads have the same token: whoever holds an older one must not write any more. An attempt has several heads,
    # one after another, when its queue takes its quota back and gives it again.
    values["RLTRAIN_FENCE"] = f"{effective.uid}/{attempt}/$({_POD})"
    token: Manifest = {"secretKeyRef": {"name": secret_name(effective.name), "key": TOKEN_KEY}}
    return [
        # The kubelet puts it into variables that come after it.
        {"name": _POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": "RLTRAIN_STATUS_TOKEN", "valueFrom": token},
    ]


def _resources(role: Role) -> dict[str, Any]:
    """Memory and accelerators are limited to what is asked for; CPU is not, as it can be shared without harm."""
    fixed = {"memory": role.memory, **accelerator_resources(role.pool, role.accelerators)}
    return {"requests": {"cpu": role.cpu, **fixed}, "limits": fixed}
