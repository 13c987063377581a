"""ConfigMap with what the trainer reads, and Secret with the tokens of an attempt: status server, Ray."""

from __future__ import annotations

import base64
from typing import Final

from rl_api.documents import dump_yaml
from rl_operator.model.names import Manifest, secret_name
from rl_operator.model.tokens import AUTHORITY, RAY, STATUS_SERVER, derive_token
from rl_operator.plan.effective import Effective

CONFIG_KEY: Final = "run.yaml"
TOKEN_KEY: Final = "token"
RAY_TOKEN_KEY: Final = "auth_token"
"""The key that KubeRay reads."""

SEED_KEY: Final = "authority_seed"
"""Of runs with encryption: what their pods make certificates with."""


def config_map(effective: Effective, attempt: int) -> Manifest:
    """The run as the trainer reads it. Immutable: an attempt is what it was when it began."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": effective.attempt_metadata(attempt),
        "immutable": True,
        "data": {CONFIG_KEY: dump_yaml(effective.document)},
    }


def secret(effective: Effective, attempt: int, key: bytes) -> Manifest:
    """The tokens of an attempt, derived from the operator's key. Kubelet and KubeRay read it, and nobody of ours."""
    tokens = {
        TOKEN_KEY: derive_token(key, effective.uid, attempt, STATUS_SERVER),
        RAY_TOKEN_KEY: derive_token(key, effective.uid, attempt, RAY),
    }
    if effective.spec.scheduling.encryption:
        tokens[SEED_KEY] = derive_token(key, effective.uid, attempt, AUTHORITY)
    name = secret_name(effective.name, effective.uid, attempt)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": effective.attempt_metadata(attempt) | {"name": name},
        "immutable": True,
        "type": "Opaque",
        "data": {part: base64.b64encode(token.encode()).decode() for part, token in tokens.items()},
    }
