"""One decode step of a batch, written for little work between the matrix products.

Every buffer is allocated once per batch size, products write into them, and the residual stream is updated in
place.

Rows and attention lengths are rounded up to whole blocks of 16. Besides saving allocations this makes a
sequence's logits the same bits whatever else is in the batch: matrix products handle the last few rows and
columns by other code, which adds in another order, and with whole blocks there are no such rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rl_trainer.model.decoder import Block, Decoder
from rl_trainer.model.layers import rotate
from rl_trainer.sampler.kv_cache import KVCache, round_up


@dataclass
class _Buffers:
    """Work space for n rows."""

    stream: torch.Tensor  # [n, H], the residual stream
    normed: torch.Tensor  # [n, H]
    scale: torch.Tensor  # [n, 1]
    qkv: torch.Tensor  # [n, (heads + 2 kv_heads) D]
    query: torch.Tensor  # [n kv_heads, groups, D]
    context: torch.Tensor  # [n kv_heads, groups, D]
    gate_up: torch.Tensor  # [n, 2 I]
    inner: torch.Tensor  # [n, I]
    logits: torch.Tensor  # [n, V]


class DecodeStep:
    """Advances sequences by one token; the parameters and the cache belong to the caller."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self.decoder = decoder
        self.config = decoder.config
        self.cache = cache
        self.device = decoder.embed.device
        self.dtype = decoder.embed.dtype
        # In float32 on a CPU the small operators have cheaper forms; elsewhere the plain ones are as good.
        self._in_place = self.device.type == "cpu" and self.dtype == torch.float32
        # PyTorch's batched product of fewer multiplications per matrix than this takes yet another way of
        # adding.
        self._shortest = math.ceil(400 / (self.config.groups * self.config.head_dim))
        self._buffers: dict[int, _Buffers] = {}
        self._scores: dict[tuple[int, int], torch.Tensor] = {}
        self._epsilon = torch.tensor(self.config.norm_eps, device=self.device)

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Logits [n, V] after `tokens` int64 [n] at `positions` int64 [n] of slots 0..n-1; their keys and
        values are stored.

        n is a multiple of 16. `length` is above every position. The result is overwritten by the next call
        with this n.
        """
        n = tokens.shape[0]
        length = round_up(max(length, self._shortest))
        self.cache.reserve(length)
        config = self.config
        buffers = self._buffers_for(n)
        mask = self._mask(positions, n, length)
        rows = self.cache.first_row[:n] + positions[:, None]
        heads = config.heads + config.kv_heads
        rotations = self.decoder.rotations(length).index_select(0, positions)[:, None]
        rotations = rotations.expand(n, heads, config.head_dim // 2).contiguous()
        torch.index_select(self.decoder.embed.detach(), 0, tokens, out=buffers.stream)
        for index, layer in enumerate(self.decoder.layers):
            self._layer(index, layer, buffers, rotations, rows, mask, length)  # type: ignore[arg-type]
        self._norm(buffers, self.decoder.norm)
        head = self.decoder.embed if self.decoder.head is None else self.decoder.head
        return torch.mm(buffers.normed, head.t(), out=buffers.logits)

    def _layer(
        self,
        index: int,
        layer: Block,
        buffers: _Buffers,
        rotations: torch.Tensor,
        rows: torch.Tensor,
        mask: torch.Tensor,
        length: int,
    ) -> None:
        config, cache = self.config, self.cache
        n = rows.shape[0]
        self._norm(buffers, layer.attention_norm)
        _product(buffers.normed, layer.qkv_weight, layer.qkv_bias, buffers.qkv)
        heads = buffers.qkv.view(n, -1, config.head_dim)
        turned = heads[:, : config.heads + config.kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            self._norm_heads(turned[:, : config.heads], layer.q_norm)
            self._norm_heads(turned[:, config.heads :], layer.k_norm)
        if self._in_place:
            torch.view_as_complex(turned.unflatten(-1, (-1, 2))).mul_(rotations)
        else:
            turned.copy_(rotate(turned, rotations))
        cache.rows[index].index_put_((rows,), heads[:, config.heads :])
        buffers.query.view(n, config.heads, config.head_dim).copy_(heads[:, : config.heads])

        used = n * config.kv_heads
        scores = self._scores_for(used, length)
        keys = cache.keys[index][:used, :length].transpose(1, 2)
        torch.baddbmm(mask, buffers.query, keys, alpha=1 / math.sqrt(config.head_dim), out=scores)
        if self._in_place:
            torch.softmax(scores, dim=-1, out=scores)
        else:
            scores = torch.softmax(scores.float(), dim=-1).to(self.dtype)
        torch.bmm(scores, cache.values[index][:used, :length], out=buffers.context)
        _add_product(buffers.stream, buffers.context.view(n, -1), layer.output_weight, layer.output_bias)

        self._norm(buffers, layer.mlp_norm)
        _product(buffers.normed, layer.gate_up_weight, layer.gate_up_bias, buffers.gate_up)
        gate, up = buffers.gate_up.chunk(2, dim=-1)
        torch.mul(F.silu(gate, inplace=True), up, out=buffers.inner)
        _add_product(buffers.stream, buffers.inner, layer.down_weight, layer.down_bias)

    def _norm(self, buffers: _Buffers, weight: torch.Tensor) -> None:
        """RMS norm of the residual stream into `normed`."""
        stream, normed, scale = buffers.stream, buffers.normed, buffers.scale
        if self._in_place:
            torch.linalg.vector_norm(stream, dim=-1, keepdim=True, out=scale)
            torch.addcmul(self._epsilon, scale, scale, value=1 / stream.shape[1], out=scale).rsqrt_()
            torch.mul(stream, scale, out=normed).mul_(weight)
        else:
            normed.copy_(F.rms_norm(stream, weight.shape, weight, self.config.norm_eps))

    def _norm_heads(self, heads: torch.Tensor, weight: torch.Tensor) -> None:
        heads.copy_(F.rms_norm(heads, weight.shape, weight, self.config.norm_eps))

    def _mask(self, positions: torch.Tensor, n: int, length: int) -> torch.Tensor:
        """Zero up to and including each sequence's own position, minus infinity after it: [n kv_heads, 1, length]."""
        heads = self.config.kv_heads
        columns = torch.arange(length, device=self.device)
        later = columns > positions[:, None]
        mask = torch.zeros(n, length, dtype=self.dtype, device=self.device).masked_fill_(later, -torch.inf)
        return mask[:, None].expand(n, heads, length).reshape(n * heads, 1, length)

    def _buffers_for(self, n: int) -> _Buffers:
        if n not in self._buffers:
            config = self.config

            def empty(*shape: int) -> torch.Tensor:
                return torch.empty(shape, dtype=self.dtype, device=self.device)

            dim, kv = config.head_dim, config.kv_heads
            self._buffers[n] = _Buffers(
                stream=empty(n, config.hidden_size),
                normed=empty(n, config.hidden_size),
                scale=empty(n, 1),
                qkv=empty(n, (config.heads + 2 * kv) * dim),
                query=empty(n * kv, config.groups, dim),
                context=empty(n * kv, config.groups, dim),
                gate_up=empty(n, 2 * config.intermediate_size),
                inner=empty(n, config.intermediate_size),
                logits=empty(n, config.vocab_size),
            )
        return self._buffers[n]

    def _scores_for(self, heads: int, length: int) -> torch.Tensor:
        key = (heads, length)
        if key not in self._scores:
            # Only the current length is used; older ones would pile up as sequences grow.
            self._scores = {
                key: torch.empty(heads, self.config.groups, length, dtype=self.dtype, device=self.device)
            }
        return self._scores[key]


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _add_product(
    stream: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    stream.addmm_(x, weight.t())
    if bias is not None:
        stream.add_(bias)
