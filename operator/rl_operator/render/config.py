"""ConfigMap with what the trainer reads, and Secret with the token of its status server."""

from __future__ import annotations

import base64
from typing import Final

from rl_api.documents import dump_yaml
from rl_operator.model.names import (
    Manifest,
    attempt_labels,
    attempt_name,
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
        "metadata": effective.metadata(
            attempt_name(effective.name, attempt), attempt_labels(effective.name, attempt)
        ),
        "immutable": True,
        "data": {CONFIG_KEY: dump_yaml(effective.document)},
    }


def secret(effective: Effective, token: str) -> Manifest:
    """The token that the operator shows to the driver. One for all attempts of a run."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": effective.metadata(secret_name(effective.name), run_labels(effective.name)),
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
