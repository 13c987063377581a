"""Names and shapes of the parameters as Hugging Face folders have them, and their place in our fused tensors.

Inside the decoder the three attention projections are one matrix, and so are gate and up: two matrix products
instead of five per layer. Rows of q and k are stored with the two halves of each head interleaved, so that a
rotary position is one complex multiplication of neighbours instead of a concatenation of halves. Dot products
do not see the order, and the way back is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rl_api.errors import ModelError
from rl_trainer.model.config import DecoderConfig

# Written by old library versions; they are computed, not learned.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias")


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model by its Hugging Face name; `lm_head.weight` only when it is not tied."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.heads * dim, config.kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.layers):
        prefix = f"model.layers.{index}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", query), ("k", key), ("v", key)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (dim,)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, query)
        if config.output_bias:
            shapes[prefix + "self_attn.o_proj.bias"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = (rows, columns)
            if config.mlp_bias:
                shapes[f"{prefix}mlp.{name}_proj.bias"] = (rows,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_shapes(config: DecoderConfig, found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Compare names and shapes with what the configuration asks for; raises ModelError naming the first difference."""
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(
                f"{where}: tensor {name} is missing; a {config.model_type} model of this config.json has it"
            )
        if tuple(found[name]) != shape:
            raise ModelError(
                f"{where}: tensor {name} has shape {list(found[name])}, but config.json asks for {list(shape)}"
            )
    unknown = [name for name in found if name not in expected and not _ignored(name, config)]
    if unknown:
        raise ModelError(
            f"{where}: tensor {unknown[0]} is not part of a {config.model_type} model of this config.json"
            + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else "")
        )


def check_same(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Compare names and shapes with those of a model of any family; raises ModelError naming the first difference."""
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"{where}: tensor {name} is missing")
        if tuple(found[name]) != tuple(shape):
            raise ModelError(
                f"{where}: tensor {name} has shape {list(found[name])}, the model's has {list(shape)}"
            )
    unknown = sorted(set(found) - set(expected))
    if unknown:
        raise ModelError(f"{where}: tensor {unknown[0]} is not part of the model")


def _ignored(name: str, config: DecoderConfig) -> bool:
    return name.endswith(_IGNORED_SUFFIXES) or (name == "lm_head.weight" and config.tied_embeddings)


def interleave(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Hugging Face's order of a head's rows (first halves, then second halves) to neighbours; [N * D, ...] -> same."""
    return rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def deinterleave(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """The inverse of `interleave`; always a copy."""
    return rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def fuse(
    config: DecoderConfig, tensors: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]
) -> None:
    """Copy Hugging Face tensors into the fused parameters `target` (names of `Decoder.named_parameters`), in
    place.

    Names and shapes must have been checked. Values are converted to the target's dtype and device.
    """
    dim = config.head_dim
    query, key, inner = config.heads * dim, config.kv_heads * dim, config.intermediate_size
    target["embed"].copy_(tensors["model.embed_tokens.weight"])
    target["norm"].copy_(tensors["model.norm.weight"])
    if not config.tied_embeddings:
        target["head"].copy_(tensors["lm_head.weight"])
    for index in range(config.layers):
        source, layer = f"model.layers.{index}.", f"layers.{index}."
        target[layer + "attention_norm"].copy_(tensors[source + "input_layernorm.weight"])
        target[layer + "mlp_norm"].copy_(tensors[source + "post_attention_layernorm.weight"])
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            qkv = target[f"{layer}qkv_{kind}"]
            qkv[:query].copy_(interleave(tensors[f"{source}self_attn.q_proj.{kind}"], dim))
            qkv[query : query + key].copy_(interleave(tensors[f"{source}self_attn.k_proj.{kind}"], dim))
            qkv[query + key :].copy_(tensors[f"{source}self_attn.v_proj.{kind}"])
        if config.qk_norm:
            target[layer + "q_norm"].copy_(interleave(tensors[source + "self_attn.q_norm.weight"], dim))
            target[layer + "k_norm"].copy_(interleave(tensors[source + "self_attn.k_norm.weight"], dim))
        for kind in ("weight", "bias") if config.output_bias else ("weight",):
            target[f"{layer}output_{kind}"].copy_(tensors[f"{source}self_attn.o_proj.{kind}"])
        for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
            gate_up = target[f"{layer}gate_up_{kind}"]
            gate_up[:inner].copy_(tensors[f"{source}mlp.gate_proj.{kind}"])
            gate_up[inner:].copy_(tensors[f"{source}mlp.up_proj.{kind}"])
            target[f"{layer}down_{kind}"].copy_(tensors[f"{source}mlp.down_proj.{kind}"])


def unfuse(config: DecoderConfig, fused: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `fuse`: contiguous tensors under Hugging Face names, in the order of `expected_shapes`.

    q and k are copies; everything else shares memory with `fused`.
    """
    dim = config.head_dim
    query, key, inner = config.heads * dim, config.kv_heads * dim, config.intermediate_size
    found: dict[str, torch.Tensor] = {
        "model.embed_tokens.weight": fused["embed"],
        "model.norm.weight": fused["norm"],
    }
    if not config.tied_embeddings:
        found["lm_head.weight"] = fused["head"]
    for index in range(config.layers):
        target, layer = f"model.layers.{index}.", f"layers.{index}."
        found[target + "input_layernorm.weight"] = fused[layer + "attention_norm"]
        found[target + "post_attention_layernorm.weight"] = fused[layer + "mlp_norm"]
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            qkv = fused[f"{layer}qkv_{kind}"]
            found[f"{target}self_attn.q_proj.{kind}"] = deinterleave(qkv[:query], dim)
            found[f"{target}self_attn.k_proj.{kind}"] = deinterleave(qkv[query : query + key], dim)
            found[f"{target}self_attn.v_proj.{kind}"] = qkv[query + key :]
        if config.qk_norm:
            found[target + "self_attn.q_norm.weight"] = deinterleave(fused[layer + "q_norm"], dim)
            found[target + "self_attn.k_norm.weight"] = deinterleave(fused[layer + "k_norm"], dim)
        for kind in ("weight", "bias") if config.output_bias else ("weight",):
            found[f"{target}self_attn.o_proj.{kind}"] = fused[f"{layer}output_{kind}"]
        for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
            gate_up = fused[f"{layer}gate_up_{kind}"]
            found[f"{target}mlp.gate_proj.{kind}"] = gate_up[:inner]
            found[f"{target}mlp.up_proj.{kind}"] = gate_up[inner:]
            found[f"{target}mlp.down_proj.{kind}"] = fused[f"{layer}down_{kind}"]
    return {name: found[name] for name in expected_shapes(config)}
