"""The operator's key, from which tokens are derived: in a Secret beside the operator, or in a file. One for all replicas."""

from __future__ import annotations

import base64
import logging
import secrets
from pathlib import Path
from typing import Any, Final

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.names import MANAGED_BY, Manifest

LOG = logging.getLogger("rl_operator")

KEY_FIELD: Final = "key"
BYTES: Final = 32


class BadKey(Exception):
    """There is a key, and it cannot be used. The message is a sentence."""


def key_of_file(path: Path) -> bytes:
    """The key in a file.

    Raises:
        OSError: it cannot be read.
        BadKey: it is too short.
    """
    return _long_enough(path.read_bytes(), f"the key file {path}")


async def key_of_secret(api: Api, namespace: str, name: str) -> bytes:
    """The key in a Secret, which is made where there is none. Of several operators that make it at once, all get one.

    Raises:
        ApiError: it can neither be read nor made.
        BadKey: somebody else made it, and it holds no key.
    """
    found = await api.find("Secret", namespace, name)
    if found is None:
        try:
            found = await api.create(_manifest(namespace, name, secrets.token_bytes(BYTES)))
            LOG.info("the key of this operator is new: Secret %s/%s", namespace, name)
        except ApiError as error:
            if not error.conflict:
                raise
            found = await api.get("Secret", namespace, name)
    return _key_in(found, f"the Secret {namespace}/{name}")


def _manifest(namespace: str, name: str, key: bytes) -> Manifest:
    labels = {"app.kubernetes.io/name": "rltrain", "app.kubernetes.io/managed-by": MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "immutable": True,
        "type": "Opaque",
        "data": {KEY_FIELD: base64.b64encode(key).decode()},
    }


def _key_in(found: Manifest, where: str) -> bytes:
    data: dict[str, Any] = found.get("data") or {}
    try:
        key = base64.b64decode(data.get(KEY_FIELD, ""), validate=True)
    except ValueError:
        key = b""
    return _long_enough(key, f"data.{KEY_FIELD} of {where}")


def _long_enough(key: bytes, where: str) -> bytes:
    if len(key) < BYTES:
        raise BadKey(f"{where}: found {len(key)} bytes, needed are {BYTES} or more, at random")
    return key
