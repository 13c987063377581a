"""`task.isolation: strict`: the container in which code of the user's runs, beside Ray's in a pod, as another user."""

from __future__ import annotations

from typing import Final

from rl_api.task import SOCKET_VARIABLE
from rl_operator.model.names import CODE_CONTAINER, Manifest
from rl_operator.plan.roles import Role
from rl_operator.render.secrets import mount_secrets, with_secrets

_USER: Final = 1001
_FOLDER: Final = "/run/rltrain-code"
_SOCKET: Final = f"{_FOLDER}/socket"
_COMMAND: Final = ("python", "-m", "rl_trainer.tasks.code_server", _SOCKET)


def add_code_container(
    role: Role, secrets: tuple[str, ...], devices: dict[str, str], spec: Manifest, ray: Manifest
) -> None:
    """Put it behind Ray's, which KubeRay takes for its own as it is the first. The two share one folder with a socket.

    Args:
        role: whose pod it is.
        secrets: what it gets, and nothing else of the run's does.
        devices: variables by which it gets no devices.
        spec: of the pod.
        ray: its first container.
    """
    asked = role.code
    if asked is None:
        return
    sizes = {"memory": asked.memory, "ephemeral-storage": asked.ephemeral_storage}
    # As in Ray's container, cores that nobody uses are not left idle.
    requests, limits = (f"{round(cores * 1000)}m" for cores in (asked.cpu, max(1.0, asked.cpu)))
    container: Manifest = {
        "name": CODE_CONTAINER,
        "image": ray["image"],
        "imagePullPolicy": ray["imagePullPolicy"],
        "command": with_secrets(_COMMAND) if secrets else list(_COMMAND),
        "env": [{"name": name, "value": value} for name, value in (devices | {"HOME": "/tmp"}).items()],
        "resources": {"requests": {"cpu": requests, **sizes}, "limits": {"cpu": limits, **sizes}},
        "securityContext": {
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "code-tmp", "mountPath": "/tmp"},
            {"name": "code-socket", "mountPath": _FOLDER},
        ],
    }
    mount_secrets(secrets, "code-secret", spec, container)
    spec["volumes"] += [
        {"name": "code-tmp", "emptyDir": {"sizeLimit": asked.ephemeral_storage}},
        {"name": "code-socket", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    ray["volumeMounts"].append({"name": "code-socket", "mountPath": _FOLDER, "readOnly": True})
    ray["env"].append({"name": SOCKET_VARIABLE, "value": _SOCKET})
    spec["containers"].append(container)
