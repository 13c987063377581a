"""One plain decoder-only transformer for the Llama, Mistral, Qwen2 and Qwen3 families, for learning and for sampling.

The learner calls `own_hidden_at` on padded batches with gradients; the sampler's engine reads the same parameters in its
decode loop. Parameters are fused (see `names`); Hugging Face names appear at the edges only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from rl_api import LoraSpec
from rl_trainer.model.at_places import AtPlaces
from rl_trainer.model.block import Block
from rl_trainer.model.config import DecoderConfig, read_config
from rl_trainer.model.context import Context, SplitPacking
from rl_trainer.model.folder import opened_weights, read_tensors
from rl_trainer.model.layers import rms_norm, rotation_table
from rl_trainer.model.lent import lent_parameters
from rl_trainer.model.lora import (
    PEFT_PREFIX,
    adapted_weights,
    adapter_state,
    adapters,
    check_targets,
    load_adapter_state,
)
from rl_trainer.model.names import Part, check_shapes, fuse, parts
from rl_trainer.model.packing import Packing
from rl_trainer.model.rows import Rows, whole, whole_rows
from rl_trainer.weights.merged import Adapted
from rl_trainer.weights.payload import shapes_of
from rl_trainer.weights.source import Laid, LazyTensor, can_be_shared


class Decoder(AtPlaces):
    """The whole model. Parameters start as zeros: load weights, or call `initialize`."""

    mixed_types = True
    """Whether layers take fp32 inputs where their own parameters are of another type, and autocast is on."""
    packs = packable = False
    """Sequences of a batch never share rows: padding costs attention only (`Packing`)."""
    context: Context | None = None
    """The processes that compute sequences together; None: each computes its own. See `split_over`."""

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        device = torch.device(device)
        self.config = config
        self.embed = nn.Parameter(
            torch.zeros(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        )
        self.layers = nn.ModuleList(Block(config, dtype, device) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.zeros(config.hidden_size, dtype=dtype, device=device))
        self.head = None
        if not config.tied_embeddings:
            self.head = nn.Parameter(torch.zeros_like(self.embed))
        self._rotations = torch.empty(0, config.head_dim // 2, dtype=torch.complex64, device=device)
        self._checkpointed = False
        self._spare: dict[str, torch.Tensor] = {}
        self._lent: set[str] = set()

    def initialize(self, std: float, seed: int) -> None:
        """Normal weights of the given standard deviation, zero biases, unit norms; the same for a seed everywhere."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm"):
                    parameter.fill_(1.0)
                elif name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [B, T, V] of every position; `attention_mask` as for `hidden_at`, None: no padding."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self.hidden_at(input_ids, mask, torch.arange(input_ids.numel(), device=input_ids.device))
        return F.linear(hidden, self.head_weight).view(*input_ids.shape, -1)

    def own_hidden_at(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        places: torch.Tensor,
        shared: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Final hidden states after the last norm: [M, H], or with a `context` [m, H], and which of `places` these are.

        Padding costs attention only, and so do the tokens that rows share; the last layer ends early for tokens whose state
        is not asked for.
        """
        split = self.context is not None
        packing: Packing | SplitPacking | None = Packing.of(attention_mask, shared, always=split)
        own = None
        rotations = self.rotations(input_ids.shape[1])[None, : input_ids.shape[1], None]
        ids = input_ids
        if isinstance(packing, Packing):
            ids = ids.flatten().index_select(0, packing.to_packed)
            places = packing.to_padded[places]
            if self.context is not None:
                own, places = self.context.own(places, len(ids))
                ids, packing = self.context.take(ids), SplitPacking(packing, self.context, self._widths)
        x = F.embedding(ids, self.embed)
        for layer in self.layers[:-1]:
            x = self._run(layer, x, rotations, packing)
        x = self._run(self.layers[-1], x, rotations, packing, places)
        return rms_norm(x, self.norm, self.config.norm_eps), own

    own_states_at = own_hidden_at

    def split_over(self, context: Context) -> None:
        """From now on these processes compute sequences together; ModelError where they cannot share the heads evenly."""
        context.check_heads(self.config.heads, self.config.kv_heads)
        self.context = context

    @property
    def _widths(self) -> tuple[int, int, int]:
        heads, kv_heads, dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        return heads * dim, kv_heads * dim, kv_heads * dim

    def checkpoint_activations(self) -> None:
        """From now on the backward pass computes each layer again: only the input of every layer is kept for it.

        Same gradients; memory for activations falls from all that a layer keeps to one [tokens, H] per layer, time
        grows by one forward pass (Chen et al. 2016, arXiv 1604.06174, with a segment per layer).
        """
        self._checkpointed = True

    def add_lora(self, options: LoraSpec, seed: int) -> None:
        """From now on adapters alone learn; the model is the same until they do, and so they are for a seed everywhere.

        Raises ModelError when a target module is not the model's.
        """
        check_targets(self.config, options.target_modules)
        self.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        for layer in self._blocks():
            layer.adapters.update(adapters(self.config, options, self.embed.device, generator))
            layer.adapted = True

    @contextmanager
    def without_lora(self) -> Iterator[None]:
        """Within, the model is what it was before `add_lora`."""
        for layer in self._blocks():
            layer.adapted = False
        try:
            yield
        finally:
            for layer in self._blocks():
                layer.adapted = True

    def adapter_state(self) -> dict[str, torch.Tensor]:
        """The adapters of `add_lora` under the names of the `peft` library, copies."""
        return adapter_state([layer.adapters for layer in self._blocks()], self.config)

    def adapted(self) -> dict[str, Adapted]:
        """The weights that adapters change, by Hugging Face name, and what of `adapter_state` changes each."""
        weights = adapted_weights([layer.adapters for layer in self._blocks()])
        return {
            name: Adapted.of(PEFT_PREFIX + name.removesuffix(".weight"), adapter.scale)
            for name, (adapter, _) in weights.items()
        }

    def load_adapter_state(self, tensors: Mapping[str, Rows]) -> None:
        """The inverse of `adapter_state`. Raises KeyError when a part is missing."""
        load_adapter_state([layer.adapters for layer in self._blocks()], self.config, tensors)

    def _blocks(self) -> list[Block]:
        return cast("list[Block]", list(self.layers))

    def _run(self, layer: nn.Module, x: torch.Tensor, *arguments: object) -> torch.Tensor:
        if self._checkpointed and torch.is_grad_enabled():
            # Recomputing draws the same random numbers only where the generator's state is kept: dropout needs that.
            result: torch.Tensor = checkpoint(layer, x, *arguments, use_reentrant=False)
        else:
            result = layer(x, *arguments)
        return result

    def parts(self) -> list[nn.Module]:
        """What is gathered one after the other where ranks divide the parameters between them."""
        return list(self.layers)

    def new_adapters(self, options: LoraSpec, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The values, by parameter, that `add_lora` gives adapters; one layer's at a time."""
        generator = torch.Generator().manual_seed(seed)
        for index in range(len(self.layers)):
            made = nn.ModuleDict(adapters(self.config, options, torch.device("cpu"), generator))
            for name, value in made.named_parameters():
                yield f"layers.{index}.adapters.{name}", value

    @property
    def vocab_size(self) -> int:
        """Number of ids the model knows."""
        return self.config.vocab_size

    @property
    def hidden_size(self) -> int:
        """H, the width of the hidden states."""
        return self.config.hidden_size

    @property
    def head_weight(self) -> torch.Tensor:
        """Weight of the output head, [V, H]."""
        return self.embed if self.head is None else self.head

    def rotations(self, length: int) -> torch.Tensor:
        """The first `length` (or more) rows of the rotary table, complex64 [>= length, D / 2]; grown on demand."""
        table = self._rotations
        if table.shape[0] < length or table.device != self.embed.device:
            # Doubling keeps the number of rebuilds logarithmic when sequences grow slowly.
            size = max(length, 2 * table.shape[0], 64)
            # Kept for later calls with gradients, which refuse tensors made in inference mode.
            with torch.inference_mode(False):
                table = rotation_table(self.config.rope, self.config.head_dim, size, self.embed.device)
            self._rotations = table
        return table

    def hf_state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters under Hugging Face names, detached and contiguous, LoRA's merged; most share memory with the model.

        Copy them before the next optimizer step if they must not change.
        """
        return {name: tensor.make() for name, tensor in self.hf_tensors().items()}

    def hf_tensors(self, *, merged: bool = True) -> dict[str, LazyTensor]:
        """What `hf_state_dict` returns, each made when it is wanted, from the parameters as they are then.

        Not `merged`: as they are without LoRA's adapters.
        """
        fused = {name: value.detach() for name, value in self.named_parameters()}
        changed = adapted_weights([layer.adapters for layer in self._blocks()]) if merged else {}
        last = {part.fused: part.name for part in parts(self.config)}
        gathered: dict[str, torch.Tensor] = {}  # one at most, that of the part made last

        def laid(part: Part) -> torch.Tensor:
            if part.fused not in gathered:
                gathered.clear()  # not all parts of it may be wanted
                gathered[part.fused] = whole(fused[part.fused])
            rows = part.of(gathered)
            if part.name == last[part.fused]:
                del gathered[part.fused]
            if part.name in changed:
                adapter, module = changed[part.name]
                rows = rows + adapter.change(module)
            return rows

        def make(part: Part) -> torch.Tensor:
            return part.unfused(laid(part), self.config.head_dim)

        def rows(part: Part) -> Callable[[int, int], torch.Tensor] | None:
            """Of those that are a parameter of their own, as it is."""
            value = fused[part.fused]
            alone = tuple(value.shape) == part.shape and not part.turned and part.name not in changed
            return partial(whole_rows, value) if alone else None

        def tensor(part: Part) -> LazyTensor:
            dtype = fused[part.fused].dtype
            shared = part.name not in changed and can_be_shared(fused[part.fused])
            if not part.turned:
                return LazyTensor(dtype, part.shape, partial(make, part), rows(part), shared)
            ours = Laid(
                LazyTensor(dtype, part.shape, partial(laid, part), shared=shared), self.config.head_dim
            )
            return LazyTensor(dtype, part.shape, partial(make, part), laid=ours)

        return {part.name: tensor(part) for part in parts(self.config)}

    def load_hf_state_dict(self, tensors: Mapping[str, Rows], where: str = "weights") -> None:
        """Copy Hugging Face tensors into the parameters, in place; all or none. Of divided ones the rows held here are read.

        Raises ModelError that begins with `where` when a tensor is missing, unknown or of another shape.
        """
        check_shapes(self.config, shapes_of(tensors), where)
        with torch.no_grad():
            for name, value in self.named_parameters():
                if name in self._lent:
                    value.data = torch.empty_like(value)
            self._lent.clear()
            fuse(self.config, tensors, {name: value.detach() for name, value in self.named_parameters()})

    def lent_parameters(self, tensors: Mapping[str, object]) -> dict[str, torch.Tensor]:
        """What `prepare_hf_state_dict` need not copy; see `lent.lent_parameters`. Not of divided parameters."""
        return lent_parameters(self.config, tensors, dict(self.named_parameters()))

    def prepare_hf_state_dict(
        self,
        tensors: Mapping[str, Rows],
        where: str = "weights",
        lent: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> Callable[[], None]:
        """What takes time of `load_hf_state_dict`, ahead and beside whoever computes with the model; not of divided ones.

        The tensors are copied to a second set of memory, which is kept from then on: as many bytes as the parameters have.
        The result, to be called once, makes it the parameters'. Whatever was prepared before and not called is void.

        `lent`: what `lent_parameters` found in the tensors. These become the parameters as they are, and have no memory here
        until others do or `own_parameters` is called: meanwhile nobody may write to parameters but by `load_hf_state_dict`.

        Raises ModelError as `load_hf_state_dict` does.
        """
        check_shapes(self.config, shapes_of(tensors), where)
        spare = self._spare
        with torch.no_grad():
            for name, value in self.named_parameters():
                if name not in lent and name not in spare:
                    spare[name] = torch.empty_like(value)
            fuse(self.config, tensors, spare, without=lent)

        def exchange() -> None:
            for name, value in self.named_parameters():
                before, value.data = value.data, lent[name] if name in lent else spare[name]
                if name in lent or name in self._lent:
                    spare.pop(name, None)
                else:
                    spare[name] = before
            self._lent = set(lent)

        return exchange

    def own_parameters(self) -> None:
        """Copies what is lent to memory of its own."""
        for name, value in self.named_parameters():
            if name in self._lent:
                value.data = value.data.clone()
        self._lent.clear()

    def lent(self) -> list[torch.Tensor]:
        """The parameters that are lent."""
        return [value for name, value in self.named_parameters() if name in self._lent]

    def prepared(self) -> list[torch.Tensor]:
        """The second set of memory, where there is one: what was prepared, or what the parameters were before."""
        return list(self._spare.values())

    def bytes_to_prepare(self, lent: Collection[str] = ()) -> int:
        """Bytes that the next `prepare_hf_state_dict` takes: once its second set of memory is there, 0. `lent`: see it."""
        there = self._spare.keys() | set(lent)
        return sum(value.nbytes for name, value in self.named_parameters() if name not in there)

    def load_folder(self, folder: Path) -> None:
        """As `load_hf_state_dict` from the files of a folder."""
        with opened_weights(folder) as tensors:
            self.load_hf_state_dict(tensors, where=f"model folder {folder}")


def load_decoder(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Decoder:
    """Open a Hugging Face folder as a Decoder; UnsupportedModelError for other families, ModelError for a broken folder."""
    config = read_config(folder)
    decoder = Decoder(config, dtype=dtype, device=device)
    decoder.load_hf_state_dict(read_tensors(Path(folder)), where=f"model folder {folder}")
    return decoder
