"""TLS between the processes of Ray (`scheduling.encryption`): each pod makes its certificates before Ray starts in it.

Ray checks that whom it calls has the address by which it is called in its certificate, and a pod's address is known when it
runs. So the attempt's Secret has the seed of an authority, from which a container that runs first makes what the pod needs
(`rl_trainer.run.certificates`). The container of Ray sees the certificates and the pod's own key, and not the seed.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from rl_operator.model.names import HEAD, Manifest, secret_name
from rl_operator.plan.effective import Effective
from rl_operator.plan.roles import Role
from rl_operator.render.config import SEED_KEY

CONTAINER: Final = "certificates"
"""KubeRay puts its own init container behind it, which calls the head with the variables and volumes of Ray's."""

_FOLDER: Final = "/etc/rltrain-tls"
_SEED_FOLDER: Final = "/etc/rltrain-seed"
_ADDRESSES: Final = "RLTRAIN_POD_IPS"
_HEAD_NAME: Final = "FQ_RAY_IP"
"""KubeRay gives every init container this variable: the name of the head's Service, by which workers call it."""

_VARIABLES: Final = {
    "RAY_USE_TLS": "1",
    "RAY_TLS_SERVER_CERT": f"{_FOLDER}/tls.crt",
    "RAY_TLS_SERVER_KEY": f"{_FOLDER}/tls.key",
    "RAY_TLS_CA_CERT": f"{_FOLDER}/ca.crt",
}
_RESOURCES: Final = {"memory": "128Mi", "ephemeral-storage": "16Mi"}


def add_encryption(
    effective: Effective, role: Role, attempt: int, spec: Manifest, environment: dict[str, str]
) -> None:
    """Have a pod make certificates before its first container starts, and Ray use them, where the run asks for it.

    `environment`: of that container when it asks for no devices.
    """
    if not effective.spec.scheduling.encryption:
        return
    ray: Manifest = spec["containers"][0]
    mount = {"name": "tls", "mountPath": _FOLDER}
    seed = {"name": "seed", "mountPath": _SEED_FOLDER, "readOnly": True}
    addresses: dict[str, Any] = {
        "name": _ADDRESSES,
        "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}},
    }
    # Who is not the head must not be able to pass for it.
    names = [f"$({_HEAD_NAME})"] if role.name == HEAD else []
    command = ["python", "-m", "rl_trainer.run.certificates", f"{_SEED_FOLDER}/{SEED_KEY}", _FOLDER]
    spec["initContainers"] = [
        {
            "name": CONTAINER,
            "image": role.trainer_image,
            "imagePullPolicy": effective.settings.image_pull_policy,
            "command": [*command, f"$({_ADDRESSES})", *names],
            "env": [*({"name": name, "value": value} for name, value in environment.items()), addresses],
            "resources": {
                "requests": {"cpu": "100m", **_RESOURCES},
                "limits": {"cpu": "1", **_RESOURCES},
            },
            "securityContext": deepcopy(ray["securityContext"]),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [mount, seed],
        }
    ]
    spec["volumes"] += [
        {"name": "tls", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {
            "name": "seed",
            "secret": {
                "secretName": secret_name(effective.name, effective.uid, attempt),
                "items": [{"key": SEED_KEY, "path": SEED_KEY}],
                "defaultMode": 0o440,
            },
        },
    ]
    ray["env"] += [{"name": name, "value": value} for name, value in _VARIABLES.items()]
    ray["volumeMounts"].append(mount | {"readOnly": True})
