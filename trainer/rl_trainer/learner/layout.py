"""How copies of the model lie over the learners' ranks: whole on every rank, or divided between some (FSDP2)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from rl_api import LoraSpec
from rl_api.errors import ModelError
from rl_api.roles import LearnerSpec
from rl_trainer.learner.critic import ValueModel
from rl_trainer.learner.gradients import DividedGradients, FlatGradients, Gradients
from rl_trainer.learner.host_memory import FreeingReduceScatter
from rl_trainer.learner.packing_check import packing_is_exact, same_log_probs, short_log_probs
from rl_trainer.learner.policy import Policy, Precision
from rl_trainer.model.context import Context
from rl_trainer.model.loader import empty_model, load_model
from rl_trainer.model.rows import fill, local


class Layout(Protocol):
    """Makes models and what goes with how they lie. With several ranks all of them make every call, in the same order."""

    counts: bool
    """Whether metrics of this rank count: of ranks that share sequences, and so find the same, those of the first do."""

    def open(self, folder: Path) -> Policy:
        """The model of a folder, fp32."""
        ...

    def copy(self, policy: Policy) -> Policy:
        """Another one with the same weights."""
        ...

    def with_lora(self, policy: Policy, options: LoraSpec, seed: int) -> Policy:
        """The policy with new adapters, in place of `policy`. Raises ModelError when a target module is not the model's."""
        ...

    def value_model(self, policy: Policy) -> ValueModel:
        """A critic that begins as a copy of the policy."""
        ...

    def load(self, policy: Policy, folder: Path) -> None:
        """Gives the policy the weights of a folder."""
        ...

    def gradients(self, parameters: Sequence[nn.Parameter]) -> Gradients:
        """Of these parameters, all of which learn."""
        ...

    def idle_passes(self, passes: int) -> int:
        """Forward passes that this rank must run beside its own `passes`, so that collectives find all ranks."""
        ...


def layout_of(
    spec: LearnerSpec,
    *,
    ranks: int,
    device: torch.device,
    dtype: torch.dtype,
    precision: Precision,
) -> Layout:
    """What `learner.parallelism` and `contextSize` ask for; a single rank has nothing to divide.

    Args:
        spec: of the learners.
        ranks: with more than one, `torch.distributed` must be initialised.
        device: of parameters.
        dtype: that products are computed in.
        precision: of forward passes.
    """
    context = _context(spec.context_size, ranks, device)
    if spec.parallelism == "fsdp2" and ranks > 1:
        return DividedLayout(
            ranks,
            spec.fsdp_size or ranks,
            device,
            dtype,
            precision,
            checkpointing=spec.activation_checkpointing,
            context=context,
        )
    return WholeLayout(ranks, device, precision, checkpointing=spec.activation_checkpointing, context=context)


def _context(size: int, ranks: int, device: torch.device) -> Context | None:
    """The `size` ranks in a row that share sequences, of which this is one; None: each has its own."""
    from torch.distributed.device_mesh import init_device_mesh

    if size == 1:
        return None
    mesh = init_device_mesh(device.type, (ranks // size, size), mesh_dim_names=("data", "context"))
    return Context(mesh.get_group("context"), size, mesh.get_local_rank("context"))


def _share_sequences(policy: Policy, context: Context | None, device: torch.device) -> None:
    """From now on the ranks of `context` compute sequences together. Raises ModelError where log-probs would not stay."""
    if context is None:
        return
    before = short_log_probs(policy, device)
    policy.model.split_over(context)  # type: ignore[operator]
    try:
        same, why = same_log_probs(policy, device, before), "log-probs are others"
    except (RuntimeError, ValueError, TypeError) as error:  # every family raises its own kinds
        same, why = False, str(error).splitlines()[0]
    if not same:
        kind = type(getattr(policy.model, "model", policy.model)).__name__
        raise ModelError(
            f"spec.learner.contextSize: found {context.size}, but {kind} cannot be computed by processes that share a "
            f"sequence ({why}), allowed: 1"
        )


class WholeLayout:
    """Every rank has all of it."""

    def __init__(
        self,
        ranks: int,
        device: torch.device,
        precision: Precision,
        *,
        checkpointing: bool,
        context: Context | None = None,
    ):
        self._ranks, self._device, self._precision = ranks, device, precision
        self._checkpointing, self._context = checkpointing, context
        self.counts = context is None or context.rank == 0

    def open(self, folder: Path) -> Policy:
        """See `Layout`."""
        model = load_model(folder, torch.float32, self._device)
        if self._checkpointing:
            model.checkpoint_activations()
        policy = Policy(model, self._precision)
        model.packs = packing_is_exact(policy, self._device)
        _share_sequences(policy, self._context, self._device)
        return policy

    def copy(self, policy: Policy) -> Policy:
        """See `Layout`."""
        return Policy(copy.deepcopy(policy.model), self._precision)

    def with_lora(self, policy: Policy, options: LoraSpec, seed: int) -> Policy:
        """See `Layout`."""
        policy.model.add_lora(options, seed)  # type: ignore[operator]
        return policy

    def value_model(self, policy: Policy) -> ValueModel:
        """See `Layout`."""
        return ValueModel(copy.deepcopy(policy.model), self._precision, self._device)

    def load(self, policy: Policy, folder: Path) -> None:
        """See `Layout`."""
        policy.model.load_folder(folder)  # type: ignore[operator]

    def gradients(self, parameters: Sequence[nn.Parameter]) -> Gradients:
        """See `Layout`."""
        return FlatGradients(parameters, self._ranks, self._device)

    def idle_passes(self, passes: int) -> int:
        """None: ranks meet after their passes only."""
        return 0


class DividedLayout:
    """Each layer's parameters are divided over `size` ranks, and there are `ranks / size` such copies.

    FSDP2 (Zhao et al. 2023, arXiv 2304.11277): a layer is gathered for its pass alone, its gradients are added up over
    all ranks and divided again. Rows are read from files, so that no rank ever holds a whole model.
    """

    def __init__(
        self,
        ranks: int,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        precision: Precision,
        *,
        checkpointing: bool,
        context: Context | None = None,
    ):
        from torch.distributed.device_mesh import init_device_mesh

        self._device, self._dtype, self._precision = device, dtype, precision
        self._checkpointing, self._context = checkpointing, context
        self.counts = context is None or context.rank == 0
        shape, names = (
            ((ranks // size, size), ("replicate", "shard")) if size < ranks else ((ranks,), ("shard",))
        )
        self._mesh: Any = init_device_mesh(device.type, shape, mesh_dim_names=names)
        self._empty: nn.Module  # the model without memory, of which further ones are made

    def open(self, folder: Path) -> Policy:
        """See `Layout`."""
        model = empty_model(folder)
        if self._checkpointing:
            model.checkpoint_activations()
        self._empty = model
        policy = self._policy()
        policy.model.load_folder(folder)  # type: ignore[operator]
        model.packs = packing_is_exact(policy, self._device)
        policy.model.packs = model.packs  # type: ignore[assignment]
        _share_sequences(policy, self._context, self._device)
        if self._context is not None:
            model.split_over(self._context)
        return policy

    def copy(self, policy: Policy) -> Policy:
        """See `Layout`."""
        made = self._policy()
        _copy_rows(policy.model, made.model)
        return made

    def with_lora(self, policy: Policy, options: LoraSpec, seed: int) -> Policy:
        """See `Layout`."""
        self._empty.add_lora(options, seed)  # type: ignore[operator]
        made = self._policy()
        _copy_rows(policy.model, made.model)
        parameters = dict(made.model.named_parameters())
        for name, value in made.model.new_adapters(options, seed):  # type: ignore[operator]
            fill(parameters[name], value.detach())
        return made

    def value_model(self, policy: Policy) -> ValueModel:
        """See `Layout`."""
        made = ValueModel(copy.deepcopy(self._empty), self._precision, torch.device("meta"))
        self._divide(made, made.body)
        _copy_rows(policy.model, made.body)
        local(made.value_head).zero_()
        return made

    def load(self, policy: Policy, folder: Path) -> None:
        """See `Layout`."""
        policy.model.load_folder(folder)  # type: ignore[operator]

    def gradients(self, parameters: Sequence[nn.Parameter]) -> Gradients:
        """See `Layout`."""
        return DividedGradients(parameters, self._mesh.get_group("shard"))

    def idle_passes(self, passes: int) -> int:
        """As many as the rank with the most passes has more; one if nobody has any, so that all parameters get gradients."""
        most = torch.tensor(passes, device=self._device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return max(1, int(most)) - passes

    def _policy(self) -> Policy:
        policy = Policy(copy.deepcopy(self._empty), self._precision)
        self._divide(policy, policy.model)
        return policy

    def _divide(self, root: nn.Module, model: nn.Module) -> None:
        """Divides the parameters of `root`, layer by layer of its `model`, and gives this rank's rows memory."""
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        # Layers are gathered in the type of their products: autograd would keep what autocast makes of every gathered layer
        # until the backward pass, on each rank a whole model. Sums over ranks and what is kept are fp32.
        reduced = MixedPrecisionPolicy(
            param_dtype=None if self._dtype == torch.float32 else self._dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=not model.mixed_types,
        )
        options: dict[str, Any] = {"mesh": self._mesh, "reshard_after_forward": True}
        for part in model.parts():  # type: ignore[operator]
            fully_shard(part, mp_policy=reduced, **options)
            if reduced.param_dtype is not None and reduced.cast_forward_inputs:
                # Before FSDP's own, which casts.
                part.register_forward_pre_hook(
                    partial(_bounded, reduced.param_dtype), prepend=True, with_kwargs=True
                )
        fully_shard(root, **options)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # Losses are sums with denominators of the whole batch, so gradients are added and never averaged. A backend
                # without averages (gloo) is only asked for sums with both of these, on every module.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                if self._device.type == "cpu":
                    # Collectives of CPUs wait for each other, so fetching the next layer ahead would cost its memory and
                    # gain nothing. What is gathered already is not gathered again.
                    module.set_modules_to_backward_prefetch([module])
                    module.set_custom_reduce_scatter(FreeingReduceScatter())  # type: ignore[arg-type]
        _give_memory(root, self._device)


def _bounded(
    dtype: torch.dtype, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A layer's inputs, none below what `dtype` can hold: masks made of the lowest fp32 number would become minus infinity
    when they are cast, and rows of padding, which see nothing, not a number.
    """

    def bound(value: Any) -> Any:
        lowest = torch.finfo(dtype).min
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.clamp(min=lowest) if torch.finfo(value.dtype).min < lowest else value

    return tuple(map(bound, args)), {name: bound(value) for name, value in kwargs.items()}


def _give_memory(root: nn.Module, device: torch.device) -> None:
    """Parameters without memory get some, tied ones the same; buffers, which were computed, keep their values."""
    made: dict[int, nn.Parameter] = {}
    for module in root.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(
                    torch.empty_like(parameter, device=device), parameter.requires_grad
                )
            module._parameters[name] = made[id(parameter)]
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


@torch.no_grad()
def _copy_rows(source: nn.Module, target: nn.Module) -> None:
    """Copies the rows of equally divided parameters by name; those of `target` alone, such as adapters, stay."""
    there = {_plain(name): parameter for name, parameter in source.named_parameters()}
    for name, parameter in target.named_parameters():
        if _plain(name) in there:
            local(parameter).copy_(local(there[_plain(name)]))


def _plain(name: str) -> str:
    """The name that a parameter has without the adapters of the `peft` library."""
    return name.replace(".base_layer.", ".")
