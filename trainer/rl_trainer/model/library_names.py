"""The library's names of parameters and those of model files, which differ where it packs experts or renames modules.

The library converts when it opens and when it saves a folder, whole models at once. Here its conversions run tensor by
tensor, so that no more than one packed parameter is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from rl_trainer.model.rows import Rows
from rl_trainer.weights.source import LazyTensor


@dataclass(frozen=True)
class Conversion:
    """Tensors of files that become parameters together.

    Attributes:
        first: a parameter's name, the first of what is made.
        transform: the library's.
        parts: names in files, and which pattern of the transform each of them fits.
    """

    first: str
    transform: Any
    parts: list[tuple[str, str]] = field(default_factory=list)

    def make(self, model: Any, tensors: Mapping[str, Rows]) -> dict[str, torch.Tensor]:
        """The parameters, whole."""
        return self._convert(model, {name: tensors[name][:] for name, _ in self.parts})

    def targets(self, model: Any, tensors: Mapping[str, Rows]) -> list[str]:
        """The names of what `make` gives, from shapes alone."""
        return list(
            self._convert(
                model,
                {name: torch.empty(tuple(tensors[name].shape), device="meta") for name, _ in self.parts},
            )
        )

    def _convert(self, model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        transform = deepcopy(self.transform)
        for name, pattern in self.parts:
            transform.add_tensor(self.first, name, pattern, tensors[name])
        made = transform.convert(self.first, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def loading_plan(model: Any, names: Iterable[str]) -> tuple[dict[str, str], list[Conversion]]:
    """How tensors of files with these names become parameters of a model of the library.

    Returns:
        Names in files by the parameter that each is as it stands, and the conversions of all others.
    """
    plain, converted, _ = _plan(model, names)
    return plain, list(converted.values())


def note_conversions(model: Any, names: Iterable[str]) -> None:
    """Notes with the model, for `saved_tensors`, how files with these names are read, as when the library opens them."""
    _, _, model._weight_conversions = _plan(model, names)


def _plan(model: Any, names: Iterable[str]) -> tuple[dict[str, str], dict[str, Conversion], list[Any]]:
    """What `loading_plan` returns, the conversions by what they make first; and those of the library's that are in use."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    own = model.state_dict()
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    plain: dict[str, str] = {}
    converted: dict[str, Conversion] = {}
    for name in sorted(names, key=dot_natural_key):  # experts by number
        target, pattern = (
            (name, None)
            if name in own
            else rename_source_key(name, renamings, converters, model.base_model_prefix, own)
        )
        if pattern is None or target not in own:
            plain[target] = name
        else:
            converted.setdefault(target, Conversion(target, by_pattern[pattern])).parts.append(
                (name, pattern)
            )
    return plain, converted, [one for one in transforms if one.was_used()]


def tied_names(model: Any) -> dict[str, str]:
    """Names of parameters that have an earlier name, under which they are published and saved, and that name."""
    first: dict[int, str] = {}
    tied = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(value), name) != name:
            tied[name] = first[id(value)]
    return tied


def untie_different(model: Any, tensors: Mapping[str, Rows]) -> None:
    """Unties parameters of which these files hold different values, as the library does when it opens such files."""
    plain, _ = loading_plan(model, tensors)
    for name, first in tied_names(model).items():
        if name in plain and first in plain and not _same(tensors[plain[name]], tensors[plain[first]]):
            owner, _, attribute = name.rpartition(".")
            setattr(
                model.get_submodule(owner),
                attribute,
                nn.Parameter(torch.empty_like(model.get_parameter(name))),
            )
            model.all_tied_weights_keys.pop(name, None)


def _same(one: Rows, other: Rows, rows: int = 4096) -> bool:
    """Whether they are equal in fp32; so many rows are in memory at a time."""
    return tuple(one.shape) == tuple(other.shape) and all(
        torch.equal(one[start : start + rows].float(), other[start : start + rows].float())
        for start in range(0, one.shape[0], rows)
    )


def saved_tensors(model: Any, own: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The parameters `own` under the names that the library saves them with, each made when it is wanted."""
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = [
        one.reverse_transform() for one in reversed(getattr(model, "_weight_conversions", None) or ())
    ]
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    groups: dict[str, _Group] = {}
    for name, tensor in own.items():
        renamed, pattern = rename_source_key(name, renamings, converters, reverse=True)
        if pattern is None:
            groups[renamed] = _Group(model, {name: tensor})
        else:
            groups.setdefault(renamed, _Group(model, {})).tensors[name] = tensor
    found: dict[str, LazyTensor] = {}
    for renamed, group in groups.items():
        if len(group.tensors) == 1 and renamed in (names := group.shapes()) and len(names) == 1:
            found[renamed] = next(iter(group.tensors.values()))
            continue
        for name, (dtype, shape) in group.shapes().items():
            found[name] = LazyTensor(dtype, shape, partial(group.make, name))
    return found


@dataclass
class _Group:
    """Parameters that become tensors of files together; what is made for the first is kept until the last is asked for."""

    model: Any
    tensors: dict[str, LazyTensor]
    made: dict[str, torch.Tensor] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        empty = {
            name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in self.tensors.items()
        }
        return {name: (value.dtype, tuple(value.shape)) for name, value in self._revert(empty).items()}

    def make(self, name: str) -> torch.Tensor:
        if name not in self.made:
            self.made = self._revert({name: one.make() for name, one in self.tensors.items()})
        return self.made.pop(name)

    def _revert(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers.core_model_loading import revert_weight_conversion

        reverted: dict[str, torch.Tensor] = revert_weight_conversion(self.model, tensors)
        return reverted
