"""Models of families that our decoder does not run: the library's own, behind the same methods.

Importing the library takes seconds of CPU time, so this module is imported only where it is needed.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_api import LoraSpec
from rl_api.errors import ModelError
from rl_trainer.model.at_places import AtPlaces
from rl_trainer.model.context import Context
from rl_trainer.model.folder import opened_weights
from rl_trainer.model.library_context import flat_rows, own_part, split_layers
from rl_trainer.model.library_names import (
    loading_plan,
    note_conversions,
    saved_tensors,
    tied_names,
    untie_different,
)
from rl_trainer.model.lora import PEFT_PREFIX
from rl_trainer.model.names import check_same
from rl_trainer.model.row_packing import RowPacking
from rl_trainer.model.rows import Rows, fill, whole, whole_rows
from rl_trainer.weights.merged import Adapted
from rl_trainer.weights.payload import shapes_of
from rl_trainer.weights.source import LazyTensor, can_be_shared

# Old files hold these, which models compute now; the library leaves them out of every family's files.
_COMPUTED = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")


class LibraryModel(AtPlaces):
    """`AutoModelForCausalLM` with the decoder's methods.

    `own_hidden_at` returns logits, and there is no `head_weight`: families differ in what they do between the last hidden
    state and the logits (scaling, soft-capping), and only the library's forward knows.
    """

    head_weight = None
    mixed_types = False
    """See `Decoder`: families differ in this too."""
    context: Context | None = None
    """See `Decoder`."""
    packs: bool
    """Whether several sequences of a batch share a row (`RowPacking`); whoever sets it has seen that this is exact."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.packs = False

    @classmethod
    def open(
        cls,
        folder: str | Path,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> LibraryModel:
        """Open a folder with the library, without running code from it; ModelError when the library cannot either."""
        import transformers

        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            # Without an answer here the library asks on the terminal whether it may run code of the folder; and its other
            # formats of weights are pickles.
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, trust_remote_code=False, use_safetensors=True
            )
        except Exception as error:  # every family raises its own kinds
            raise _unopened(folder, error) from None
        return cls(model.to(device).eval())

    @classmethod
    def empty(cls, folder: str | Path) -> LibraryModel:
        """The same model, fp32, with parameters on torch's device `meta`; buffers are computed. ModelError as of `open`."""
        import accelerate
        import transformers

        try:
            config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
            with accelerate.init_empty_weights(include_buffers=False):
                model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    config, dtype=torch.float32, trust_remote_code=False
                )
        except Exception as error:  # every family raises its own kinds
            raise _unopened(folder, error) from None
        model.tie_weights()
        with opened_weights(Path(folder)) as tensors:
            note_conversions(model, tensors)
            untie_different(model, tensors)
        return cls(model.eval())

    @property
    def vocab_size(self) -> int:
        """Number of ids the model knows."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int:
        """Longest sequence the model was made for, in tokens."""
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [B, T, V]; arguments as for `Decoder.forward`."""
        logits: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).logits
        return logits

    def own_hidden_at(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        places: torch.Tensor,
        shared: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of the flattened logits [B * T, V]; what rows share (`shared`) is computed in each."""
        inputs, places, own = self._inputs(input_ids, attention_mask, places)
        logits: torch.Tensor = self.model(**inputs, use_cache=False).logits
        return flat_rows(logits, inputs, self.context).index_select(0, places), own

    @property
    def packable(self) -> bool:
        """Whether rows may hold several sequences as far as can be known without computing: the model takes positions, and
        attention is not cut at certain columns of a row."""
        chunked = getattr(self.model.config.get_text_config(), "attention_chunk_size", None)
        return "position_ids" in inspect.signature(self.model.forward).parameters and not chunked

    @property
    def one_row(self) -> bool:
        """Whether its attention takes any number of sequences in one row at the cost of each by itself."""
        return str(self.model.config._attn_implementation).startswith("flash_attention")

    def _inputs(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, places: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None]:
        """Arguments of the library's model, where its rows at `places` are, and which of them it gives (None: all)."""
        packing = RowPacking.of(attention_mask, one_row=self.one_row) if self.packs else None
        if packing is None:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        else:
            ids = input_ids.flatten()[packing.source]
            inputs, places = {"input_ids": ids, "position_ids": packing.position_ids}, packing.place[places]
        return (inputs, places, None) if self.context is None else own_part(inputs, places, self.context)

    def split_over(self, context: Context) -> None:
        """As `Decoder.split_over`; whoever asks for it sees whether this family's log-probs stay the same."""
        split_layers(self.model, self.parts(), context)
        self.context = context

    @property
    def hidden_size(self) -> int:
        """H, the width of the hidden states."""
        return int(self.model.config.get_text_config().hidden_size)

    def own_states_at(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        places: torch.Tensor,
        shared: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of the flattened last hidden states [B * T, H]."""
        inputs, places, own = self._inputs(input_ids, attention_mask, places)
        states: torch.Tensor = self.model.get_decoder()(**inputs, use_cache=False).last_hidden_state
        return flat_rows(states, inputs, self.context).index_select(0, places), own

    def checkpoint_activations(self) -> None:
        """As `Decoder.checkpoint_activations`; ModelError for families whose layers the library cannot compute again."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        layers = [layer for layer in self.model.modules() if isinstance(layer, GradientCheckpointingLayer)]
        if not layers or not self.model.supports_gradient_checkpointing:
            raise ModelError(
                f"learner.activationCheckpointing: the library has no such thing for {type(self.model).__name__}; "
                "set it to false"
            )
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for layer in layers:
            # The library looks at this flag of the layer itself; what is inside stays without dropout.
            layer.training = True

    def add_lora(self, options: LoraSpec, seed: int) -> None:
        """As `Decoder.add_lora`, with the `peft` library's adapters."""
        import peft
        from transformers.pytorch_utils import Conv1D

        modules: dict[str, list[nn.Module]] = {}
        shared = tied_names(self.model)
        shared |= {first: name for name, first in shared.items()}
        tied: dict[str, str] = {}  # of a module, what else has its weight
        for name, module in self.model.named_modules():
            last = name.rpartition(".")[2]
            modules.setdefault(last, []).append(module)
            if (other := shared.get(f"{name}.weight")) is not None:
                tied[last] = other
        for target in options.target_modules:
            if target not in modules:
                raise ModelError(
                    f"spec.learner.lora.targetModules: found {target}, but {type(self.model).__name__} has no such module"
                )
            for module in modules[target]:
                if not isinstance(module, nn.Linear | Conv1D):
                    raise ModelError(
                        f"spec.learner.lora.targetModules: found {target}, which is of class {type(module).__name__} in "
                        f"{type(self.model).__name__}, allowed: linear modules (Linear, Conv1D)"
                    )
            if target in tied:
                # A file has the weight once, for both: merged, a change of one would be a change of the other.
                raise ModelError(
                    f"spec.learner.lora.targetModules: found {target}, whose weight is that of {tied[target]} too in "
                    f"{type(self.model).__name__} (tied), allowed: modules with a weight of their own"
                )
        config = peft.LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,
            target_modules=list(options.target_modules),
            fan_in_fan_out=any(isinstance(modules[target][-1], Conv1D) for target in options.target_modules),
        )
        self.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            self.model.add_adapter(config)
        parameters = dict(self.named_parameters())
        for name, value in self.new_adapters(options, seed):
            if not parameters[name].is_meta:
                fill(parameters[name], value)

    def new_adapters(self, options: LoraSpec, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
        """As `Decoder.new_adapters`."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if ".lora_A." in name:
                # Kaiming's uniform with a = sqrt(5), as peft's.
                drawn = torch.rand(parameter.shape, generator=generator) * 2 - 1
                yield name, drawn / math.sqrt(parameter.shape[1])
            elif ".lora_B." in name:
                yield name, torch.zeros(parameter.shape)

    def parts(self) -> list[nn.Module]:
        """As `Decoder.parts`: the library's own list of what is never split; ModelError for a family without one."""
        kinds = set(self.model._no_split_modules or ())

        def is_part(module: nn.Module) -> bool:
            # Or a class that FSDP2 has made of it.
            return any(one.__name__ in kinds for one in type(module).__mro__)

        found = [module for module in self.model.modules() if is_part(module)]
        if not found:
            raise ModelError(
                f"spec.learner.parallelism: found fsdp2, but the library does not say which layers of "
                f"{type(self.model).__name__} belong together, allowed: ddp"
            )
        return found[::-1]  # the inner ones before those around them, as they must be divided

    @contextmanager
    def without_lora(self) -> Iterator[None]:
        """Within, the model is what it was before `add_lora`."""
        self.model.disable_adapters()
        try:
            yield
        finally:
            self.model.enable_adapters()

    def adapter_state(self) -> dict[str, torch.Tensor]:
        """The adapters of `add_lora` under the names of the `peft` library, copies."""
        return {name: whole(value).cpu().clone() for name, value in self._adapters().items()}

    @torch.no_grad()
    def load_adapter_state(self, tensors: Mapping[str, Rows]) -> None:
        """The inverse of `adapter_state`. Raises KeyError when a part is missing."""
        for name, value in self._adapters().items():
            fill(value, tensors[name])

    def adapted(self) -> dict[str, Adapted]:
        """As `Decoder.adapted`; ModelError where a file holds an adapted weight in another form than the model does."""
        own = self._own(False)
        names = {id(tensor): name for name, tensor in saved_tensors(self.model, own).items()}
        found = {}
        for path, module in self.model.named_modules():
            if not hasattr(module, "lora_A"):
                continue
            name = f"{path}.weight"
            if (saved := names.get(id(own[name]))) is None:
                raise ModelError(
                    f"spec.weightSync.transport: found adapter, but files of {type(self.model).__name__} hold {name} in "
                    "another form, which no adapter changes; allowed: auto, objectStore, delta"
                )
            found[saved] = Adapted.of(
                PEFT_PREFIX + path, module.scaling["default"], turned=module.fan_in_fan_out
            )
        return found

    def _adapters(self) -> dict[str, torch.Tensor]:
        return {
            PEFT_PREFIX + name.replace(".default.", "."): value
            for name, value in self.model.named_parameters()
            if ".lora_" in name
        }

    def hf_state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters under the names that files have, detached, tied ones once, LoRA's merged; most share memory with the
        model.
        """
        return {name: tensor.make() for name, tensor in self.hf_tensors().items()}

    def hf_tensors(self, *, merged: bool = True) -> dict[str, LazyTensor]:
        """What `hf_state_dict` returns, each made when it is wanted, from the parameters as they are then; see `Decoder`."""
        return saved_tensors(self.model, self._own(merged))

    def _own(self, merged: bool) -> dict[str, LazyTensor]:
        """The same under the names of the model's own modules."""
        tied = tied_names(self.model)
        modules = dict(self.model.named_modules())
        own: dict[str, LazyTensor] = {}
        for name, value in self.model.state_dict().items():
            if name in tied or ".lora_" in name:
                continue
            shape = tuple(value.shape)
            module = modules[name.rpartition(".")[0].removesuffix(".base_layer")]
            if merged and name.endswith(".base_layer.weight"):
                own[_plain(name)] = LazyTensor(value.dtype, shape, partial(_merged, value, module))
            else:
                rows = partial(whole_rows, value) if shape else None
                own[_plain(name)] = LazyTensor(
                    value.dtype, shape, partial(whole, value), rows, can_be_shared(value)
                )
        return own

    def load_hf_state_dict(self, tensors: Mapping[str, Rows], where: str = "weights") -> None:
        """Copy tensors into the parameters, in place, through the library's own mapping of names; of divided parameters the
        rows held here are read.

        Raises ModelError when a tensor is missing, unknown or of another shape.
        """
        self._load(tensors, where, unknown_too=False)

    def load_folder(self, folder: Path) -> None:
        """As `load_hf_state_dict` from the files of a folder, whose unknown tensors are left out, as by `open`."""
        with opened_weights(folder) as tensors:
            self._load(tensors, f"model folder {folder}", unknown_too=True)

    def _load(self, tensors: Mapping[str, Rows], where: str, *, unknown_too: bool) -> None:
        tied = tied_names(self.model)
        own = {name: value for name, value in self.model.state_dict().items() if name not in tied}
        plain, converted = loading_plan(self.model, tensors)
        for name, first in tied.items():
            # Files may hold a tied parameter under any of its names.
            if name in plain:
                plain.setdefault(first, plain.pop(name))
        # Computed by the model itself, where a file does not hold them.
        computed = {name for name, _ in self.model.named_buffers()} - plain.keys()
        shapes = shapes_of(tensors)
        found = {target: shapes[name] for target, name in plain.items()}
        for one in converted:
            found.update({target: tuple(own[target].shape) for target in one.targets(self.model, tensors)})
        patterns = (*(self.model._keys_to_ignore_on_load_unexpected or ()), *_COMPUTED)
        ignored = [re.compile(pattern) for pattern in patterns]
        known = {
            name: shape
            for name, shape in found.items()
            if name in own or not (unknown_too or any(pattern.search(name) for pattern in ignored))
        }
        expected = {name: tuple(value.shape) for name, value in own.items() if name not in computed}
        check_same(expected, known, where)
        for target, name in plain.items():
            if target in own:
                fill(own[target], tensors[name])
        for one in converted:
            for target, value in one.make(self.model, tensors).items():
                fill(own[target], value)


def _unopened(folder: str | Path, error: Exception) -> ModelError:
    lines = str(error).strip().splitlines()
    return ModelError(
        f"model folder {folder}: neither the built-in decoder nor the Hugging Face library can open it "
        f"({lines[0] if lines else type(error).__name__})"
    )


def _plain(name: str) -> str:
    """The name of a parameter without `peft`'s layer around it."""
    return name.replace(".base_layer.", ".")


def _merged(base: torch.Tensor, module: Any) -> torch.Tensor:
    """A weight with its adapter's change, which `peft` adds in the same way."""
    a, b = (whole(side["default"].weight) for side in (module.lora_A, module.lora_B))
    change: torch.Tensor = b @ a * module.scaling["default"]
    return whole(base) + (change.T if module.fan_in_fan_out else change)
