"""What a checkpoint holds: the state of the learners; as bytes, arrays of groups and states of random generators."""

from __future__ import annotations

import base64
import io
import json
import random
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_api.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

Arrays = Mapping[str, npt.NDArray[Any]]

_COUNT = "groups"
# What NumPy and zipfile raise for bytes that are no archive, or not a whole one.
_UNREADABLE = (
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class LearnerState:
    """What a checkpoint holds of the learners.

    Attributes:
        weights: fp32, by Hugging Face name; LoRA's merged.
        optimizer: moments by parameter.
        optimizer_steps: taken since reinforcement learning began.
        adapter: of LoRA, under the names of the `peft` library; None where all weights learn.
        critic: see `Critic.state`; None without one.
    """

    weights: Arrays
    optimizer: Arrays
    optimizer_steps: int
    adapter: Arrays | None
    critic: Arrays | None


def to_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Copies: what comes through the object store is read-only."""
    import torch

    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def pack_groups(groups: Sequence[Arrays]) -> bytes:
    """Arrays of several groups as one .npz: any shapes and types but objects; order and names are kept.

    Args:
        groups: per group: name -> array.

    Raises:
        TypeError: an array holds Python objects (it would need pickle, which runs code when it is read).
    """
    arrays: dict[str, npt.NDArray[Any]] = {_COUNT: np.array(len(groups))}
    for index, group in enumerate(groups):
        for name, array in group.items():
            values = np.asarray(array)
            if values.dtype.hasobject:
                raise TypeError(f"array {name!r} of group {index} holds Python objects")
            arrays[f"{index}/{name}"] = values
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def unpack_groups(data: bytes) -> list[dict[str, npt.NDArray[Any]]]:
    """The groups that `pack_groups` packed. Raises CheckpointError when the bytes are something else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            groups: list[dict[str, npt.NDArray[Any]]] = [{} for _ in range(int(archive[_COUNT]))]
            for key in archive.files:
                if key != _COUNT:
                    index, _, name = key.partition("/")
                    groups[int(index)][name] = archive[key]
            return groups
    except _UNREADABLE as error:
        raise CheckpointError(f"The groups in a checkpoint cannot be read: {error}.") from error


def capture_rng(generators: Mapping[str, np.random.Generator] | None = None) -> bytes:
    """States of this process's random generators as JSON.

    Python's `random`, NumPy's global one, torch's (CPU, and every accelerator it has used) when torch is
    loaded here, and the given NumPy generators.
    """
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
        "generators": {name: _plain(each.bit_generator.state) for name, each in (generators or {}).items()},
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = _encode(torch.get_rng_state())
        if torch.cuda.is_initialized():
            state["cuda"] = [_encode(each) for each in torch.cuda.get_rng_state_all()]
    return json.dumps(state).encode()


def restore_rng(data: bytes, generators: Mapping[str, np.random.Generator] | None = None) -> None:
    """Put every generator back to where `capture_rng` found it.

    States of accelerators beyond those of this machine are left out.

    Args:
        data: from `capture_rng`.
        generators: the same names as then; they are changed in place.

    Raises:
        CheckpointError: the bytes are something else, or hold no state of a given generator.
    """
    try:
        state = json.loads(data)
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        for name, generator in (generators or {}).items():
            generator.bit_generator.state = _arrays(state["generators"][name])
        if "torch" in state:
            import torch

            torch.set_rng_state(_decode(state["torch"]))
            for index, encoded in enumerate(state.get("cuda", [])):
                if index < torch.cuda.device_count():
                    torch.cuda.set_rng_state(_decode(encoded), index)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"The random states in a checkpoint cannot be restored: {type(error).__name__}: {error}."
        ) from error


def _encode(tensor: Any) -> str:
    return base64.b64encode(tensor.numpy().tobytes()).decode()


def _decode(text: str) -> Any:
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _plain(value: Any) -> Any:
    """Generator states as JSON: arrays (Philox, MT19937) are marked with their type."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return {"__array__": value.tolist(), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        if "__array__" in value:
            return np.array(value["__array__"], dtype=value["dtype"])
        return {key: _arrays(each) for key, each in value.items()}
    return value
