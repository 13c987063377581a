"""The random generators of a learner's process, as bytes for a checkpoint."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import numpy as np
import torch

from rl_api.errors import CheckpointError


def capture_rng() -> bytes:
    """States of Python's `random`, NumPy's global generator and torch's (CPU, and accelerators that were used), as JSON."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": _encode(torch.get_rng_state()),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [_encode(each) for each in torch.cuda.get_rng_state_all()]
    return json.dumps(state).encode()


def restore_rng(data: bytes) -> None:
    """Put every generator back to where `capture_rng` found it.

    States of accelerators beyond those of this machine are left out.

    Raises:
        CheckpointError: the bytes are something else.
    """
    try:
        state = json.loads(data)
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        torch.set_rng_state(_decode(state["torch"]))
        for index, encoded in enumerate(state.get("cuda", [])):
            if index < torch.cuda.device_count():
                torch.cuda.set_rng_state(_decode(encoded), index)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"The random states in a checkpoint cannot be restored: {type(error).__name__}: {error}."
        ) from error


def _encode(tensor: torch.Tensor) -> str:
    return base64.b64encode(tensor.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
