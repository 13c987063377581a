"""Random batches in fp64, and what it means that two results agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# groups, samples of a group, tokens. Each with the seed of its place here.
SHAPES = ((1, 2, 1), (2, 4, 9), (3, 2, 16), (4, 8, 33), (1, 5, 70))
TOLERANCE = 1e-6


@dataclass
class Batch:
    """[B, T] each unless stated; B = groups * samples of a group, members of a group next to each other.

    `mask`: 1 for a token of the policy; 0 in holes (what an environment said) and in padding at the end, where all
    values are random too. Every sequence has a token.
    """

    log_probs: Tensor
    old: Tensor
    sampler: Tensor
    reference: Tensor
    values: Tensor
    old_values: Tensor
    returns: Tensor
    token_advantages: Tensor
    advantages: Tensor  # [B]
    rewards: Tensor  # [B]
    mask: Tensor
    group_size: int

    @property
    def group_ids(self) -> list[int]:
        return [row // self.group_size for row in range(len(self.rewards))]

    @property
    def lengths(self) -> list[int]:
        """Tokens of the policy, per sequence."""
        return [int(count) for count in self.mask.sum(dim=1)]


def random_batch(seed: int, groups: int, group_size: int, tokens: int, drift: float = 0.4) -> Batch:
    """`drift`: standard deviation of the log-prob differences between any two of the policies."""
    generator = torch.Generator().manual_seed(1000 + seed)
    shape = (groups * group_size, tokens)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    mask = (torch.rand(*shape, generator=generator) > 0.25).double()
    ends = torch.randint(1, tokens + 1, (shape[0], 1), generator=generator)
    mask = mask * (torch.arange(tokens) < ends)
    mask[:, 0] = 1.0
    log_probs = -normal(*shape).abs() - 0.01
    values = normal(*shape)
    return Batch(
        log_probs=log_probs,
        old=(log_probs + drift * normal(*shape)).clamp(max=-1e-3),
        sampler=(log_probs + drift * normal(*shape)).clamp(max=-1e-3),
        reference=(log_probs + drift * normal(*shape)).clamp(max=-1e-3),
        values=values,
        old_values=values + 0.4 * normal(*shape),
        returns=values + normal(*shape),
        token_advantages=normal(*shape),
        advantages=normal(shape[0]),
        rewards=torch.randint(0, 5, (shape[0],), generator=generator).double() / 2 + 0.1 * normal(shape[0]),
        mask=mask,
        group_size=group_size,
    )


def agree(ours: Tensor, theirs: Tensor, scale: float | None = None) -> None:
    """Fails where the largest difference passes TOLERANCE * scale; by default the largest number of theirs."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    assert ours.shape == theirs.shape
    assert torch.isfinite(theirs).all()
    difference = (ours - theirs).abs().max().item()
    scale = theirs.abs().max().item() if scale is None else scale
    assert difference <= TOLERANCE * scale + 1e-12, f"differ by {difference:.3g} at a scale of {scale:.3g}"


def with_gradient(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """`function(point)`, a scalar, and its gradient."""
    variable = point.detach().clone().requires_grad_()
    value = function(variable)
    value.backward()
    assert variable.grad is not None
    return value.detach(), variable.grad


def same_function(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], point: Tensor
) -> None:
    """Both have the same gradient at `point`, and the same value: a sum whose terms may cancel, so absolutely."""
    our_value, our_gradient = with_gradient(ours, point)
    their_value, their_gradient = with_gradient(theirs, point)
    agree(our_value, their_value, scale=max(1.0, abs(their_value.item())))
    agree(our_gradient, their_gradient)
