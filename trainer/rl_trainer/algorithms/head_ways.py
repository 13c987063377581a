"""Ways to compute log-probs through the output head that an accelerator may be faster by than in plain chunks.

Cross entropy of one token is its negative log-prob: kernels of others serve where they give it token by token, and take as
many gradients. None of them has the entropy. All of them hold some of the logits at a time, never all.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_trainer.algorithms.token_log_probs import LOWEST, OURS, HeadWay, Kernels

COMPILED, TORCH, LIGER = "compiled", "torch linear_cross_entropy", "liger"
CANDIDATES = (OURS.name, COMPILED, TORCH, LIGER)
"""Names of all ways, the plain one first."""


class NoSuchWay(Exception):
    """Something that a way needs is not here; the message says what."""


def head_way(name: str) -> HeadWay:
    """The way of this name, one of CANDIDATES. Raises NoSuchWay where what it needs is not installed."""
    return _MAKERS[name]()


def compiled(backend: str = "inductor") -> HeadWay:
    """Ours with each chunk's softmax, and its gradient, fused by `torch.compile`: plain, each goes over it about ten times.

    Entropy and its gradient come along.
    """
    if backend == "inductor":
        # In this process: a pool of compilers would be processes whose memory nobody has reckoned with. Not by the setting
        # itself, which counts in one thread: of a GPU the backward pass is in another. It is read as inductor is imported.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # Nothing is said of shapes: chunks of full size get kernels of their own, and the last ones share some of any size.
    return HeadWay(
        COMPILED, Kernels(torch.compile(_values, backend=backend), torch.compile(_gradient, backend=backend))
    )


def _values(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`chunk_values` such that nothing but sums over the vocabulary has to be there before anything else."""
    scaled = logits.float() / temperature
    total = scaled.logsumexp(dim=1, keepdim=True)
    log_p = scaled - total
    log_probs = logits.gather(1, targets.unsqueeze(1)).float() / temperature - total
    return log_probs.squeeze(1), -(log_p.exp() * log_p.clamp(min=LOWEST)).sum(dim=1)


def _gradient(
    logits: Tensor,
    targets: Tensor,
    entropy: Tensor,
    grad_log_probs: Tensor | None,
    grad_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """`chunk_gradient` in the type of the logits, likewise: a scattered addition would have to be written and read."""
    scaled = logits.float() / temperature
    log_p = scaled - scaled.logsumexp(dim=1, keepdim=True)
    factor = torch.zeros_like(log_p)  # of each probability
    if grad_entropy is not None:
        factor = -(log_p.clamp(min=LOWEST) + entropy.unsqueeze(1)) * grad_entropy.unsqueeze(1)
    if grad_log_probs is None:
        return (log_p.exp() * factor / temperature).to(logits.dtype)
    scale = grad_log_probs.unsqueeze(1)
    hit = torch.arange(logits.shape[1], device=logits.device) == targets.unsqueeze(1)
    grad = log_p.exp() * (factor - scale) + torch.where(hit, scale, 0.0)
    return (grad / temperature).to(logits.dtype)


def _torch_way() -> HeadWay:
    """Torch's own from 2.13 on, in chunks like ours. Logits are in fp32; log-probs are rounded to the products' type."""
    run: Any = getattr(F, "linear_cross_entropy", None)
    options: Any = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    if run is None or options is None:
        raise NoSuchWay(f"torch {torch.__version__} has no linear_cross_entropy in chunks")

    def fused(hidden: Tensor, head: Tensor, targets: Tensor, rows: int) -> Tensor:
        # Without options it would make all logits at once.
        chosen = options(batch_chunk_size=min(rows, len(targets)))
        found: Tensor = run(hidden, head, targets, reduction="none", options=chosen)
        return -found

    return HeadWay(TORCH, fused=fused)


def _liger_way() -> HeadWay:
    """The kernel of the package liger-kernel; releases that take no gradient token by token do not agree with ours."""
    if importlib.util.find_spec("liger_kernel") is None:
        raise NoSuchWay("liger-kernel is not installed here")
    from liger_kernel.transformers import functional

    def fused(hidden: Tensor, head: Tensor, targets: Tensor, rows: int) -> Tensor:
        found = functional.liger_fused_linear_cross_entropy(hidden, head, targets, reduction="none")
        value: Tensor = found[0] if isinstance(found, tuple) else found
        return -value

    return HeadWay(LIGER, fused=fused)


_MAKERS: dict[str, Callable[[], HeadWay]] = {
    OURS.name: lambda: OURS,
    COMPILED: compiled,
    TORCH: _torch_way,
    LIGER: _liger_way,
}
