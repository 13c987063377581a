"""The library's models where several processes compute sequences together (see `context`).

A model gets whole sequences, and makes masks and rotations of them. Its first layer takes this process's columns of the
hidden states, every layer those of the rotations, and what the library calls for attention exchanges tokens for heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_api.errors import ModelError
from rl_trainer.model.context import Context

_ATTRIBUTE = "sequence_context"
"""Of every module within a layer: the `Context`."""


def split_layers(model: Any, layers: Sequence[nn.Module], context: Context) -> None:
    """From now on `layers` of the library's `model` compute a part of each sequence, whose length C has to divide.

    Raises ModelError where heads do not divide evenly, or where attention is not a function that the library looks up.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    text, kernel = model.config.get_text_config(), str(model.config._attn_implementation)
    heads = int(getattr(text, "num_attention_heads", None) or 0)
    if not heads or kernel not in ALL_ATTENTION_FUNCTIONS:
        raise ModelError(
            f"spec.learner.contextSize: found {context.size}, but {type(model).__name__} has no attention that the library "
            "looks up, allowed: 1"
        )
    context.check_heads(heads, int(getattr(text, "num_key_value_heads", None) or heads))
    within = {id(module) for layer in layers for module in layer.modules() if module is not layer}
    outer = [layer for layer in layers if id(layer) not in within]
    in_order = [module for module in model.modules() if any(module is layer for layer in outer)]
    for layer in in_order:
        layer.register_forward_pre_hook(
            partial(_own_columns, context, layer is in_order[0]), with_kwargs=True
        )
        for module in layer.modules():
            setattr(module, _ATTRIBUTE, context)
    attention = ALL_ATTENTION_FUNCTIONS[kernel]
    if getattr(attention, "func", None) is not _attend:
        # Under the name that it has: the library takes kernels of flash attention by it.
        ALL_ATTENTION_FUNCTIONS[kernel] = partial(_attend, attention)


def own_part(
    inputs: dict[str, Tensor], places: Tensor, context: Context
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Arguments [R, W] of a model whose layers are split, with as many columns as C divides.

    And where those of `places` int64 [M], in the flattened [R * W], that this process computes are in what the model gives;
    and which these are, bool [M].
    """
    width = inputs["input_ids"].shape[1]
    own, columns = context.own(places % width, width)
    more = -width % context.size  # columns that follow the last one, which nothing before them sees
    inputs = {name: F.pad(value, (0, more)) for name, value in inputs.items()}
    return inputs, places[own] // width * ((width + more) // context.size) + columns, own


def flat_rows(found: Tensor, inputs: dict[str, Tensor], context: Context | None) -> Tensor:
    """What the library gives, [R, W, ...], flattened; ValueError where its columns are not those that it was asked for."""
    columns = inputs["input_ids"].shape[1] // (1 if context is None else context.size)
    if found.shape[1] != columns:
        raise ValueError(f"it gives {found.shape[1]} columns for {columns}")
    return found.flatten(0, 1)


def _own_columns(
    context: Context, first: bool, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A layer's inputs with this process's columns of what there is of each token: hidden states of the first, rotations."""

    def own(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(own(one) for one in value)
        each = value.shape[1] // context.size
        return value[:, context.rank * each : (context.rank + 1) * each]

    if first and args:
        args = (own(args[0]), *args[1:])
    elif first:
        kwargs = kwargs | {"hidden_states": own(kwargs["hidden_states"])}
    if kwargs.get("position_embeddings") is not None:
        kwargs = kwargs | {"position_embeddings": own(kwargs["position_embeddings"])}
    return args, kwargs


def _attend(
    attention: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The library's `attention` [B, heads, T, D] -> [B, T, heads, D], of all columns and own heads where there is a context.

    `args`, such as the mask, are of all columns.
    """
    context: Context | None = getattr(module, _ATTRIBUTE, None)
    if context is None:
        return attention(module, query, key, value, *args, **kwargs)
    sizes = [part.shape[1] // context.size for part in (query, key, value)]
    by_process = [
        part.transpose(1, 2).unflatten(2, (context.size, -1)).flatten(3)  # type: ignore[no-untyped-call]
        for part in (query, key, value)
    ]
    widths = [part.shape[3] for part in by_process]
    found = _columns_first(torch.cat(by_process, dim=3), context)  # [B, T, (heads + 2 kv_heads) D / C]
    whole = [
        part.unflatten(2, (size, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
        for part, size in zip(torch.split(found, widths, dim=2), sizes, strict=True)
    ]
    attended, weights = attention(module, *whole, *args, **kwargs)
    rows, columns, heads, dim = attended.shape
    # [B, T, heads D / C] -> [C t B, ...]: of each process's columns together
    by_column = attended.flatten(2).transpose(0, 1).flatten(0, 1)
    own = context.to_tokens(by_column).unflatten(0, (columns // context.size, rows))  # type: ignore[no-untyped-call]
    return own.transpose(0, 1).unflatten(2, (heads * context.size, dim)), weights


def _columns_first(tokens: Tensor, context: Context) -> Tensor:
    """From all heads of own columns [B, t, C, W] to own heads of all columns [B, C t, W]."""
    rows, columns = tokens.shape[:2]
    exchanged = context.to_heads(tokens.transpose(0, 1).flatten(0, 1))  # [C t B, W]
    return exchanged.unflatten(0, (columns * context.size, rows)).transpose(0, 1)  # type: ignore[no-untyped-call, no-any-return]
