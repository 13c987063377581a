"""Names and shapes of the parameters as Hugging Face folders have them, and their place in our fused tensors.

Inside the decoder the three attention projections are one matrix, and so are gate and up: two matrix products
instead of five per layer. Rows of q and k are stored with the two halves of each head interleaved, so that a
rotary position is one complex multiplication of neighbours instead of a concatenation of halves. Dot products
do not see the order, and the way back is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

import torch

from rl_api.errors import ModelError
from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.rows import Rows, fill_part
from rl_trainer.weights.payload import laid_tensor
from rl_trainer.weights.row_order import deinterleave, interleave, interleaved

# Written by old library versions; they are computed, not learned.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias")


@dataclass(frozen=True)
class Projection:
    """One of the projections that a fused matrix holds.

    Attributes:
        name: Hugging Face name within the layer, such as `self_attn.q_proj`.
        rows: of the fused matrix, in order.
        columns: of the fused matrix.
        turned: whether its rows are stored interleaved, for rotary positions.
    """

    name: str
    rows: int
    columns: int
    turned: bool = False

    @property
    def module(self) -> str:
        """The last part of the name: what `targetModules` of LoRA lists."""
        return self.name.rpartition(".")[2]


class Part(NamedTuple):
    """A Hugging Face tensor, and where in a fused parameter (a name of `Decoder.named_parameters`) its rows begin."""

    name: str
    shape: tuple[int, ...]
    fused: str
    first: int = 0
    turned: bool = False

    def of(self, fused: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Its rows, a view."""
        return fused[self.fused][self.first : self.first + self.shape[0]]

    def unfused(self, rows: torch.Tensor, head_dim: int) -> torch.Tensor:
        """What `of` gave in Hugging Face's order, contiguous; a copy where its rows are turned, else the same memory."""
        return deinterleave(rows, head_dim) if self.turned else rows


def projections(config: DecoderConfig) -> dict[str, tuple[Projection, ...]]:
    """The projections of each fused matrix of a layer."""
    inner, hidden = config.intermediate_size, config.hidden_size
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "qkv": (
            Projection("self_attn.q_proj", query, hidden, turned=True),
            Projection("self_attn.k_proj", key, hidden, turned=True),
            Projection("self_attn.v_proj", key, hidden),
        ),
        "output": (Projection("self_attn.o_proj", hidden, query),),
        "gate_up": (Projection("mlp.gate_proj", inner, hidden), Projection("mlp.up_proj", inner, hidden)),
        "down": (Projection("mlp.down_proj", hidden, inner),),
    }


@cache  # each version of a model is looked at part by part
def parts(config: DecoderConfig) -> tuple[Part, ...]:
    """Every parameter of the model; `lm_head.weight` only when it is not tied.

    In Hugging Face's order, but that the weights of a fused matrix come before its biases: next to each other they are it.
    """
    return tuple(_parts(config))


@cache
def parts_by_parameter(config: DecoderConfig) -> Mapping[str, tuple[Part, ...]]:
    """The same by the fused parameter that they are rows of, each in the order of its rows."""
    found: dict[str, list[Part]] = {}
    for part in parts(config):
        found.setdefault(part.fused, []).append(part)
    return MappingProxyType({name: tuple(several) for name, several in found.items()})


def _parts(config: DecoderConfig) -> Iterator[Part]:
    hidden, dim = config.hidden_size, config.head_dim
    biased = {"qkv": config.qkv_bias, "output": config.output_bias}
    yield Part("model.embed_tokens.weight", (config.vocab_size, hidden), "embed")
    for index in range(config.layers):
        theirs, ours = f"model.layers.{index}.", f"layers.{index}."
        yield Part(theirs + "input_layernorm.weight", (hidden,), ours + "attention_norm")
        for matrix, inside in projections(config).items():
            for kind in ("weight", "bias") if biased.get(matrix, config.mlp_bias) else ("weight",):
                first, fused = 0, f"{ours}{matrix}_{kind}"
                for one in inside:
                    shape = (one.rows, one.columns) if kind == "weight" else (one.rows,)
                    yield Part(f"{theirs}{one.name}.{kind}", shape, fused, first, one.turned)
                    first += one.rows
            if matrix == "qkv" and config.qk_norm:
                yield Part(theirs + "self_attn.q_norm.weight", (dim,), ours + "q_norm", turned=True)
                yield Part(theirs + "self_attn.k_norm.weight", (dim,), ours + "k_norm", turned=True)
            if matrix == "output":
                yield Part(theirs + "post_attention_layernorm.weight", (hidden,), ours + "mlp_norm")
    yield Part("model.norm.weight", (hidden,), "norm")
    if not config.tied_embeddings:
        yield Part("lm_head.weight", (config.vocab_size, hidden), "head")


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its Hugging Face name."""
    return {part.name: part.shape for part in parts(config)}


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


def fuse(
    config: DecoderConfig,
    tensors: Mapping[str, Rows],
    target: Mapping[str, torch.Tensor],
    without: Collection[str] = (),
) -> None:
    """Copy Hugging Face tensors into the fused parameters `target`, in place: of divided ones the rows held here.

    Names and shapes must have been checked. Values are converted to the target's dtype and device. `without`: names of fused
    parameters that are left out.
    """
    for part in parts(config):
        if part.fused in without:
            continue
        laid = laid_tensor(tensors, part.name, config.head_dim) if part.turned else None
        if laid is None:
            read = partial(_read, tensors[part.name], config.head_dim if part.turned else None)
        else:
            read = partial(_read, laid, None)
        fill_part(target[part.fused], part.first, part.first + part.shape[0], read)


def _read(tensor: Rows, head_dim: int | None, first: int, last: int) -> torch.Tensor:
    """Rows of a tensor, interleaved within heads of `head_dim` rows unless that is None: of whole heads a view, [heads,
    head_dim / 2, 2, ...], so that whoever copies it does so once."""
    if head_dim is None:
        return tensor[first:last]
    if first % head_dim == 0 == last % head_dim:
        return interleaved(tensor[first:last], head_dim)
    start = first // head_dim * head_dim  # whole heads
    heads = interleave(tensor[start : -(-last // head_dim) * head_dim], head_dim)
    return heads[first - start : last - start]
