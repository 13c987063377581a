"""LoRA: of each matrix W only a low-rank change is learned, W + (alpha / rank) B A (Hu et al. 2021, arXiv 2106.09685).

The decoder's matrices are fused (see `names`), adapters are not: q, k, v, gate and up have an A and a B of their own, as in
the `peft` library, whose format adapters are kept in. Both sides of an adapter are fp32 parameters; B begins as zeros, so
that a model with new adapters is the model without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from rl_api import LoraSpec
from rl_api.errors import ModelError
from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.names import Projection, projections
from rl_trainer.model.rows import Rows, fill, whole
from rl_trainer.weights.row_order import deinterleave, interleave

PEFT_PREFIX = "base_model.model."
"""What `peft` puts before the Hugging Face name of the adapted module."""


Layer = Mapping[str, "Adapter"]
"""The adapters of one layer by fused matrix."""


def check_targets(config: DecoderConfig, targets: Sequence[str]) -> None:
    """ModelError when the decoder has no projection of one of these names."""
    known = [part.module for parts in projections(config).values() for part in parts]
    for target in targets:
        if target not in known:
            raise ModelError(
                f"spec.learner.lora.targetModules: found {target}, which a {config.model_type} model does not have; "
                f"allowed: {', '.join(known)}"
            )


class Adapter(nn.Module):
    """What is learned of one fused matrix [out, in]: B [rows, rank] and A [rank, in] of each projection that is a target."""

    def __init__(
        self,
        parts: Sequence[Projection],
        options: LoraSpec,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.columns = columns = parts[0].columns
        self.scale = options.alpha / options.rank
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        bound = 1 / math.sqrt(
            columns
        )  # Kaiming's uniform with a = sqrt(5), as in peft and torch's own Linear
        for part in self.parts:
            if part.module in options.target_modules:
                # Drawn on the CPU: the same for a seed on every device and rank.
                drawn = (torch.rand(options.rank, columns, generator=generator) * 2 - 1) * bound
                self.a[part.module] = nn.Parameter(drawn.to(device))
                self.b[part.module] = nn.Parameter(torch.zeros(part.rows, options.rank, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The change of the matrix's product with x: [..., in] -> [..., out]."""
        changes = [
            F.linear(F.linear(x, self.a[part.module]), self.b[part.module]) * self.scale
            if part.module in self.a
            else x.new_zeros(*x.shape[:-1], part.rows)
            for part in self.parts
        ]
        return changes[0] if len(changes) == 1 else torch.cat(changes, dim=-1)

    @torch.no_grad()
    def change(self, module: str) -> torch.Tensor:
        """(alpha / rank) B A of an adapted projection: [rows, in], its rows as the fused matrix has them."""
        return whole(self.b[module]) @ whole(self.a[module]) * self.scale


def adapters(
    config: DecoderConfig, options: LoraSpec, device: torch.device, generator: torch.Generator
) -> dict[str, Adapter]:
    """New adapters of one layer by fused matrix; none for a matrix without an adapted projection."""
    return {
        name: Adapter(parts, options, device, generator)
        for name, parts in projections(config).items()
        if any(part.module in options.target_modules for part in parts)
    }


def adapted_weights(layers: Sequence[Layer]) -> dict[str, tuple[Adapter, str]]:
    """The adapter of every weight that has one, by the weight's Hugging Face name, and the projection's module."""
    return {
        f"{name.removeprefix(PEFT_PREFIX)}.weight": (adapter, part.module)
        for name, part, adapter in _adapted(layers)
    }


def adapter_state(layers: Sequence[Layer], config: DecoderConfig) -> dict[str, torch.Tensor]:
    """All adapters under `peft`'s names, copies, on the CPU."""
    state = {}
    for name, part, a, b in _pairs(layers):
        rows = deinterleave(whole(b), config.head_dim) if part.turned else whole(b)
        state[f"{name}.lora_A.weight"] = whole(a).cpu().clone()
        state[f"{name}.lora_B.weight"] = rows.cpu().clone()
    return state


@torch.no_grad()
def load_adapter_state(layers: Sequence[Layer], config: DecoderConfig, tensors: Mapping[str, Rows]) -> None:
    """The inverse of `adapter_state`. Raises KeyError when a part is missing."""
    for name, part, a, b in _pairs(layers):
        fill(a, tensors[f"{name}.lora_A.weight"])
        rows = tensors[f"{name}.lora_B.weight"][:]
        fill(b, interleave(rows, config.head_dim) if part.turned else rows)


def _pairs(layers: Sequence[Layer]) -> Iterator[tuple[str, Projection, torch.Tensor, torch.Tensor]]:
    """`peft`'s name, projection, A and B of every adapted projection."""
    for name, part, adapter in _adapted(layers):
        yield name, part, adapter.a[part.module], adapter.b[part.module]


def _adapted(layers: Sequence[Layer]) -> Iterator[tuple[str, Projection, Adapter]]:
    """`peft`'s name, projection and adapter of every adapted projection."""
    for index, layer in enumerate(layers):
        for adapter in layer.values():
            for part in adapter.parts:
                if part.module in adapter.a:
                    yield f"{PEFT_PREFIX}model.layers.{index}.{part.name}", part, adapter
