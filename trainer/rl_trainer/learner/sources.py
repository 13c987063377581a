"""What a learner publishes, one tensor at a time; `saving` is what a checkpoint has of it. No Ray here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from rl_trainer.learner.rank import Learner
from rl_trainer.weights.source import LazyTensor, TensorSource, lazy, source_of
from rl_trainer.weights.transports.base import AdapterOffer, Offer


def weight_source(
    learner: Learner, dtype: torch.dtype = torch.float32, *, as_laid: bool = False
) -> TensorSource:
    """The policy under Hugging Face names in number format `dtype`, LoRA's merged; `as_laid`: see `source_of`."""
    learner.require("its weights are published")
    tensors: Mapping[str, LazyTensor] = learner.model.hf_tensors()  # type: ignore[operator]
    return _on_rank_0(learner, {name: tensor.to(dtype) for name, tensor in tensors.items()}, as_laid)


def offer(learner: Learner, dtype: torch.dtype) -> Offer:
    """What is published, in number format `dtype`; adapters as they are, in fp32."""
    weights = partial(weight_source, learner, dtype)
    # vLLM and servers would have the order changed once each, where here it is done once for all.
    laid = partial(weights, as_laid=True) if learner.spec.sampler.engine == "torch" else None
    return Offer(weights, partial(_adapter_offer, learner, dtype), laid, learner.device)


def _adapter_offer(learner: Learner, dtype: torch.dtype) -> AdapterOffer | None:
    learner.require("its adapters are published")
    adapted = learner.adapted()
    if not adapted:  # no LoRA, or not yet: the warm start makes the base
        return None
    base = partial(_base_source, learner, dtype, frozenset(adapted))
    return AdapterOffer(partial(adapter_source, learner), base, adapted, dtype)


def _base_source(learner: Learner, dtype: torch.dtype, adapted: frozenset[str]) -> TensorSource:
    """As `weight_source`, but without the adapters, and `adapted` weights in a format that loses nothing: what a sampler
    merges is then what a learner does. Every rank makes those weights once more to find it out."""
    tensors: Mapping[str, LazyTensor] = learner.model.hf_tensors(merged=False)  # type: ignore[operator]
    makes = learner.rank == 0 or learner.divided
    # In the order of the tensors, on every rank the same.
    kept = {name for name in tensors if name in adapted and makes and not _holds(dtype, tensors[name])}
    found = {name: tensor if name in kept else tensor.to(dtype) for name, tensor in tensors.items()}
    return _on_rank_0(learner, found)


def _holds(dtype: torch.dtype, tensor: LazyTensor) -> bool:
    value = tensor.make()
    return torch.equal(value.to(dtype).to(value.dtype), value)


def adapter_source(learner: Learner) -> TensorSource:
    """LoRA's state under the names of the `peft` library: copies, of little beside the model."""
    state: dict[str, Tensor] = learner.model.adapter_state()  # type: ignore[operator]
    return _on_rank_0(learner, lazy(state))


def _on_rank_0(learner: Learner, tensors: Mapping[str, LazyTensor], as_laid: bool = False) -> TensorSource:
    """Where every rank has the same, only the one whose values are used makes them; else all of them do, together."""
    source = source_of(tensors, as_laid=as_laid)
    if learner.rank == 0 or learner.divided:
        return source

    def nothing() -> Iterator[tuple[str, Tensor]]:
        return ((name, torch.empty(0)) for name in source.shapes)

    return TensorSource(source.shapes, nothing)
