"""Secrets of the user's in the environment of a pod's processes, and never in that of its container.

What hands out devices reads the container's environment, whose last word is the pod's: by NVIDIA_VISIBLE_DEVICES=all in a
Secret a pod that asked for one GPU had all of its node. So Secrets are files, of which the first shell of the container
makes variables when all that is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rl_api.roles import RESERVED_VARIABLES
from rl_operator.model.names import Manifest

FOLDER: Final = "/etc/rltrain-secrets"
_OTHERS: Final = "|".join(RESERVED_VARIABLES)
EXPORT: Final = (
    f'for file in {FOLDER}/*/*; do name="${{file##*/}}"; case "$name" in *[!A-Za-z0-9_]*|[0-9]*|{_OTHERS}) ;; '
    '*) export "$name=$(<"$file")" ;; esac; done'
)
"""A line for bash. Names that no variable can have are passed over, as Kubernetes does."""


def add_secrets(secrets: Sequence[str], spec: Manifest, container: Manifest) -> None:
    """Make variables of the Secrets' keys in a pod's first container, which KubeRay starts with `bash -c`."""
    mount_secrets(secrets, "secret", spec, container)
    if secrets:
        # KubeRay puts `ray start` behind it.
        container["args"] = [EXPORT]


def mount_secrets(secrets: Sequence[str], prefix: str, spec: Manifest, container: Manifest) -> None:
    """The files of which `EXPORT` makes variables, in volumes with names of their own."""
    for number, name in enumerate(secrets):
        # In this order: of a key that several have the last one's value counts.
        volume = f"{prefix}-{number:02}"
        mount = {"name": volume, "mountPath": f"{FOLDER}/{number:02}", "readOnly": True}
        container["volumeMounts"].append(mount)
        spec["volumes"].append({"name": volume, "secret": {"secretName": name, "defaultMode": 0o440}})


def with_secrets(command: Sequence[str]) -> list[str]:
    """A command that is run later in such a container, with the same variables."""
    return ["bash", "-c", f'{EXPORT}; exec "$@"', "rltrain", *command]
