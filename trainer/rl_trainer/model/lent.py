"""Parameters of the decoder that are read where a version lies, in memory that is lent: no copy, and never written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.names import Part, parts
from rl_trainer.weights.payload import lent_tensor

# Where torch puts its own memory: products take the same code, and give the same bits.
_ALIGNMENT = 64


def lent_parameters(
    config: DecoderConfig, tensors: Mapping[str, object], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Fused parameters as views of lent tensors, by name: those whose parts lie one after the other as they are to be.

    What is rotated, of another number format or on another device, split over blocks or not next to its neighbour is left
    out. `like`: the parameters as they are.
    """
    inside: dict[str, list[Part]] = {}
    for part in parts(config):
        inside.setdefault(part.fused, []).append(part)
    found = {name: _joined(several, tensors, like[name]) for name, several in inside.items()}
    return {name: value for name, value in found.items() if value is not None}


def _joined(several: Sequence[Part], tensors: Mapping[str, object], like: Tensor) -> Tensor | None:
    if any(part.turned for part in several) or not like.is_contiguous():
        return None
    first: Tensor | None = None
    end = 0
    for part in several:
        one = lent_tensor(tensors, part.name)
        if one is None or (one.dtype, one.device, one.shape) != (like.dtype, like.device, part.shape):
            return None
        if first is None:
            first, end = one, one.data_ptr()
        if one.data_ptr() != end or one.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
        end += one.nbytes
    if first is None or first.data_ptr() % _ALIGNMENT or end - first.data_ptr() != like.nbytes:
        return None
    return first.as_strided(like.shape, like.stride())
