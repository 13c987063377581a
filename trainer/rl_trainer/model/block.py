"""One layer of our decoder: attention and SwiGLU, with fused parameters (see `names`)."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.context import SplitPacking
from rl_trainer.model.layers import rms_norm, rotate, swiglu
from rl_trainer.model.lora import Adapter
from rl_trainer.model.packing import Packing


class Block(nn.Module):
    """One layer: attention and SwiGLU, each behind an RMS norm and added to the residual stream."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = config
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        qkv = (config.heads + 2 * config.kv_heads) * dim

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))

        self.attention_norm = parameter(hidden)
        self.qkv_weight = parameter(qkv, hidden)
        self.qkv_bias = parameter(qkv) if config.qkv_bias else None
        self.q_norm = parameter(dim) if config.qk_norm else None
        self.k_norm = parameter(dim) if config.qk_norm else None
        self.output_weight = parameter(hidden, config.heads * dim)
        self.output_bias = parameter(hidden) if config.output_bias else None
        self.mlp_norm = parameter(hidden)
        self.gate_up_weight = parameter(2 * inner, hidden)
        self.gate_up_bias = parameter(2 * inner) if config.mlp_bias else None
        self.down_weight = parameter(hidden, inner)
        self.down_bias = parameter(hidden) if config.mlp_bias else None
        # Of LoRA, by fused matrix (`lora.adapters`). The flag spares decoding a look into an empty dictionary.
        self.adapters = cast("dict[str, Adapter]", nn.ModuleDict())
        self.adapted = False

    def forward(
        self,
        x: torch.Tensor,
        rotations: torch.Tensor,
        packing: Packing | SplitPacking | None = None,
        chosen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One layer, causal: x [B, T, H] -> [B, T, H], or the tokens alone with `packing`: [N, H] -> [N, H].

        `rotations` complex [1, T, 1, D / 2]. `chosen` int64 [M]: only these of the flattened rows are wanted, [M, H]. With a
        `SplitPacking` tokens are this process's, and so are the heads that its attention computes.
        """
        config = self.config
        normed = rms_norm(x, self.attention_norm, config.norm_eps)
        qkv = self._product("qkv", normed, self.qkv_weight, self.qkv_bias)
        if packing is not None:
            qkv = packing.spread(qkv)
        q, k, v = self.heads(qkv, rotations)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=config.groups > 1,
        )
        attended = attended.transpose(1, 2).flatten(2)
        if packing is not None:
            attended = packing.gather(attended)
        elif chosen is not None:
            attended, x = attended.flatten(0, 1), x.flatten(0, 1)
        if chosen is not None:
            attended, x = attended.index_select(0, chosen), x.index_select(0, chosen)
        return self.after_attention(x, attended)

    def project(
        self, normed: torch.Tensor, rotations: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [..., heads, D], keys and values [..., kv_heads, D] of normed [..., H], rotated."""
        return self.heads(self._product("qkv", normed, self.qkv_weight, self.qkv_bias), rotations)

    def heads(
        self, qkv: torch.Tensor, rotations: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same from the projections [..., (heads + 2 kv_heads) D]."""
        config = self.config
        heads = qkv.unflatten(-1, (-1, config.head_dim))  # type: ignore[no-untyped-call]
        # Of all heads, or of those of this process (`SplitPacking`).
        kv_heads = heads.shape[-2] // (config.groups + 2)
        turned, v = heads.split((kv_heads * (config.groups + 1), kv_heads), dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = turned.split((kv_heads * config.groups, kv_heads), dim=-2)
            q, k = rms_norm(q, self.q_norm, config.norm_eps), rms_norm(k, self.k_norm, config.norm_eps)
            turned = torch.cat((q, k), dim=-2)
        q, k = rotate(turned, rotations).split((kv_heads * config.groups, kv_heads), dim=-2)  # type: ignore[no-untyped-call]
        return q, k, v

    def after_attention(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of the layer: x [..., H] and attended [..., heads D] -> [..., H]."""
        x = x + self._product("output", attended, self.output_weight, self.output_bias)
        normed = rms_norm(x, self.mlp_norm, self.config.norm_eps)
        gate_up = self._product("gate_up", normed, self.gate_up_weight, self.gate_up_bias)
        return x + self._product("down", swiglu(gate_up), self.down_weight, self.down_bias)

    def _product(
        self, name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        product = F.linear(x, weight, bias)
        if self.adapted and name in self.adapters:
            product = product + self.adapters[name](x)
        return product
