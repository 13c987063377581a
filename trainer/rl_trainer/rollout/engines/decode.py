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

from rl_trainer.model.block import Block
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.layers import rotate
from rl_trainer.rollout.engines.attention import DecodeAttention
from rl_trainer.rollout.engines.kv_cache import KVCache


@dataclass
class _Buffers:
    """Work space for n rows, and the views of it that every layer works on: making one takes as long as some products."""

    stream: torch.Tensor  # [n, H], the residual stream
    normed: torch.Tensor  # [n, H]
    scale: torch.Tensor  # [n, 1]
    qkv: torch.Tensor  # [n, (heads + 2 kv_heads) D]
    query: torch.Tensor  # [n, heads, D]
    gate_up: torch.Tensor  # [n, 2 I]
    inner: torch.Tensor  # [n, I]
    logits: torch.Tensor  # [n, V]
    q: torch.Tensor  # [n, heads, D], of qkv
    k: torch.Tensor  # [n, kv_heads, D], of qkv
    keys_values: torch.Tensor  # [n, 2 kv_heads, D], of qkv
    gate: torch.Tensor  # [n, I], of gate_up
    up: torch.Tensor  # [n, I], of gate_up


@dataclass
class _Place:
    """Where this step's tokens stand: the same for all layers."""

    query_rotations: torch.Tensor  # complex [n, 1, D / 2], with the factor 1 / sqrt(D) of the scores
    key_rotations: torch.Tensor  # complex [n, 1, D / 2]
    rows: torch.Tensor  # int64 [n 2 kv_heads], where the new keys and values go in the cache
    mask: (
        torch.Tensor
    )  # [n kv_heads, 1, capacity], 0 up to a sequence's own position and minus infinity after it


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
        self.attention = DecodeAttention(self.config, self.device, self.dtype)
        self._buffers: dict[int, _Buffers] = {}
        self._epsilon = torch.tensor(self.config.norm_eps, device=self.device)

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] after `tokens` int64 [n] at `positions` int64 [n] of slots 0..n-1; their keys and values are stored.

        n is a multiple of 16; the cache is laid out for every position. The next call with this n overwrites the result.
        """
        buffers = self._buffers_for(tokens.shape[0])
        place = self._place(positions)
        torch.index_select(self.decoder.embed.detach(), 0, tokens, out=buffers.stream)
        for index, layer in enumerate(self.decoder.layers):
            self._layer(index, layer, buffers, place)  # type: ignore[arg-type]
        self._norm(buffers, self.decoder.norm)
        head = self.decoder.embed if self.decoder.head is None else self.decoder.head
        return torch.mm(buffers.normed, head.t(), out=buffers.logits)

    def forget_buffers(self) -> None:
        """Gives the work space back; the next call makes it anew."""
        self._buffers.clear()
        self.attention.forget_buffers()

    def _place(self, positions: torch.Tensor) -> _Place:
        n, heads, length = positions.shape[0], self.config.kv_heads, self.cache.capacity
        rotations = self.decoder.rotations(length).index_select(0, positions)[:, None]
        later = torch.arange(length, device=self.device) > positions[:, None]
        mask = torch.zeros(n, length, dtype=self.dtype, device=self.device).masked_fill_(later, -torch.inf)
        return _Place(
            query_rotations=rotations / math.sqrt(self.config.head_dim),
            key_rotations=rotations,
            rows=self.cache.rows_of(positions),
            mask=mask[:, None].expand(n, heads, length).reshape(n * heads, 1, length),
        )

    def _layer(self, index: int, layer: Block, buffers: _Buffers, place: _Place) -> None:
        config, cache = self.config, self.cache
        self._norm(buffers, layer.attention_norm)
        _product(buffers.normed, layer.qkv_weight, layer.qkv_bias, buffers.qkv)
        q, k = buffers.q, buffers.k
        if layer.q_norm is not None and layer.k_norm is not None:
            self._norm_heads(q, layer.q_norm)
            self._norm_heads(k, layer.k_norm)
        self._rotate(q, place.query_rotations, buffers.query)
        self._rotate(k, place.key_rotations, k)
        cache.rows[index].index_copy_(0, place.rows, buffers.keys_values.reshape(-1, config.head_dim))

        attended = self.attention(buffers.query, cache.keys[index], cache.values[index], place.mask)
        _add_product(buffers.stream, attended, layer.output_weight, layer.output_bias)

        self._norm(buffers, layer.mlp_norm)
        _product(buffers.normed, layer.gate_up_weight, layer.gate_up_bias, buffers.gate_up)
        torch.mul(F.silu(buffers.gate, inplace=True), buffers.up, out=buffers.inner)
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

    def _rotate(self, heads: torch.Tensor, rotations: torch.Tensor, out: torch.Tensor) -> None:
        """Rotary positions of [n, N, D] heads into `out`."""
        if self._in_place:
            pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))  # type: ignore[no-untyped-call]
            torch.mul(pairs, rotations, out=torch.view_as_complex(out.unflatten(-1, (-1, 2))))  # type: ignore[no-untyped-call]
        else:
            out.copy_(rotate(heads, rotations))

    def _norm_heads(self, heads: torch.Tensor, weight: torch.Tensor) -> None:
        heads.copy_(F.rms_norm(heads, weight.shape, weight, self.config.norm_eps))

    def _buffers_for(self, n: int) -> _Buffers:
        if n not in self._buffers:
            config = self.config

            def empty(*shape: int) -> torch.Tensor:
                return torch.empty(shape, dtype=self.dtype, device=self.device)

            qkv = empty(n, (config.heads + 2 * config.kv_heads) * config.head_dim)
            heads = qkv.view(n, -1, config.head_dim)
            gate_up = empty(n, 2 * config.intermediate_size)
            gate, up = gate_up.chunk(2, dim=-1)
            self._buffers[n] = _Buffers(
                stream=empty(n, config.hidden_size),
                normed=empty(n, config.hidden_size),
                scale=empty(n, 1),
                qkv=qkv,
                query=empty(n, config.heads, config.head_dim),
                gate_up=gate_up,
                inner=empty(n, config.intermediate_size),
                logits=empty(n, config.vocab_size),
                q=heads[:, : config.heads],
                k=heads[:, config.heads : config.heads + config.kv_heads],
                keys_values=heads[:, config.heads :],
                gate=gate,
                up=up,
            )
        return self._buffers[n]


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
