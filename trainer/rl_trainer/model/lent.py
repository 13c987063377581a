"""Parameters of the decoder that are read where a version lies, in memory that is lent: no copy, and never written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.names import Part, parts_by_parameter
from rl_trainer.weights.payload import lent_rows

# Where torch puts its own memory: products take the same code, and give the same bits.
_ALIGNMENT = 64


def lent_parameters(
    config: DecoderConfig, tensors: Mapping[str, object], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Fused parameters as views of lent tensors, by name: those whose parts lie one after the other as they are to be.

    What is in another order, of another number format or on another device, split over blocks or not next to its neighbour
    is left out. `like`: the parameters as they are.
    """
    head_dim = config.head_dim
    found = {
        name: _joined(several, tensors, like[name], head_dim)
        for name, several in parts_by_parameter(config).items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _joined(
    several: Sequence[Part], tensors: Mapping[str, object], like: Tensor, head_dim: int
) -> Tensor | None:
    found = lent_rows(tensors, [(part.name, head_dim if part.turned else 0) for part in several])
    if found is None or not like.is_contiguous() or found.data_ptr() % _ALIGNMENT:
        return None
    same = (found.dtype, found.device, found.shape) == (like.dtype, like.device, like.shape)
    return found if same else None
