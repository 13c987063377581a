"""ConfigMap with what the trainer reads, and Secret with the token of its status server."""

from __future__ import annotations

import base64
from typing import Final

from rl_api.documents import dump_yaml
from rl_operator.model.names import (
    Manifest,
    attempt_labels,
    attempt_name,
    owner,
    run_labels,
    secret_name,
)
from rl_operator.plan.effective import Effective

CONFIG_KEY: Final = "run.yaml"
TOKEN_KEY: Final = "token"


def config_map(effective: Effective, attempt: int) -> Manifest:
    """The run as the trainer reads it. Immutable: an attempt is what it was when it began."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": attempt_name(effective.name, attempt),
            "namespace": effective.namespace,
            "labels": attempt_labels(effective.name, attempt),
            "ownerReferences": [owner(effective.name, effective.uid)],
        },
        "immutable": True,
        "data": {CONFIG_KEY: dump_yaml(effective.document)},
    }


def secret(effective: Effective, token: str) -> Manifest:
    """The token that the operator shows to the driver. One for all attempts of a run."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(effective.name),
            "namespace": effective.namespace,
            "labels": run_labels(effective.name),
            "ownerReferences": [owner(effective.name, effective.uid)],
        },
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
