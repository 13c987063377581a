"""Log-probs and entropy of sampled tokens, in fp32, without keeping a [tokens, vocabulary] matrix in fp32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# fp32 numbers of one chunk. On a CPU 256 KiB, which stay in its cache (measured: twice as fast as 32 MiB).
# On an accelerator, and through the output head, 64 MiB: enough to fill the device.
_CHUNK_CPU = 2**16
_CHUNK_LARGE = 2**24
# Stands for -inf where it would meet a probability of 0.
_LOWEST = -1e30


def token_log_probs(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Log-prob of every target token and entropy of its distribution, from one softmax.

    `z = float32(logits) / temperature; l = z[target] - logsumexp(z); H = -sum(p log p)` with `p =
    softmax(z)`. The conversion comes before the division and the softmax, so bf16 logits lose nothing more.
    Nothing of size [N, V] is kept in fp32 between forward and backward: the softmax is computed again, chunk
    by chunk, from the logits. Gradients: `dl/dz = onehot - p`, `dH/dz = -p (log p + H)`; second derivatives
    are refused.

    Args:
        logits: [..., V], any floating type; -inf marks tokens that cannot be sampled.
        targets: [...] integers, the tokens sampled; entries of padding may be any valid index.
        temperature: the sampling temperature, > 0.
        chunk: rows at a time; default: as many as make 256 KiB in fp32 on a CPU, 64 MiB elsewhere.

    Returns:
        (log-probs, entropy in nats), float32, the shape of `targets`. A gradient that nobody asks for costs
        nothing.

    Raises:
        ValueError: the temperature is not above 0, or shapes do not fit.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, must be above 0 to train")
    if logits.shape[:-1] != targets.shape:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit targets {tuple(targets.shape)}")
    vocabulary = logits.shape[-1]
    numbers = _CHUNK_CPU if logits.device.type == "cpu" else _CHUNK_LARGE
    rows = chunk or max(1, numbers // max(1, vocabulary))
    flat = logits.reshape(-1, vocabulary)
    log_probs, entropy = _TokenLogProbs.apply(  # type: ignore[no-untyped-call]
        flat, targets.reshape(-1).long(), float(temperature), rows
    )
    return log_probs.view(targets.shape), entropy.view(targets.shape)


def head_token_log_probs(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_log_probs` of `hidden @ head_weight.T`, chunk by chunk: the logits never exist as a whole.

    The head is computed twice (again in the backward pass). Worth it where `tokens * vocabulary` logits are
    large: 16,384 tokens of a 152,000-token vocabulary are 5 GB in bf16.

    Args:
        hidden: [N, H] final hidden states of the positions that predict the targets.
        head_weight: [V, H] weight of the output head, same type as `hidden`.
        targets: [N]. temperature, chunk, returns, raises: as `token_log_probs`.
    """
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} must be [N, H] and targets {tuple(targets.shape)} [N]"
        )
    rows = chunk or max(1, _CHUNK_LARGE // head_weight.shape[0])

    def part(states: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return token_log_probs(F.linear(states, weight), tokens, temperature, chunk)

    if len(targets) <= rows:
        return part(hidden, head_weight, targets)
    parts: list[tuple[Tensor, Tensor]] = [
        checkpoint(part, states, head_weight, tokens, use_reentrant=False, preserve_rng_state=False)
        for states, tokens in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    ]
    return torch.cat([first for first, _ in parts]), torch.cat([second for _, second in parts])


class _TokenLogProbs(torch.autograd.Function):
    """The chunked computation; see `token_log_probs` for the formulas."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        count = len(targets)
        log_probs = logits.new_empty(count, dtype=torch.float32)
        entropy = logits.new_empty(count, dtype=torch.float32)
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            log_p = _log_softmax(logits[part], temperature)
            log_probs[part] = log_p.gather(1, targets[part].unsqueeze(1)).squeeze(1)
            entropy[part] = -(log_p.exp() * log_p.clamp_(min=_LOWEST)).sum(dim=1)
        ctx.save_for_backward(logits, targets, entropy)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Any, ...]:
        logits, targets, entropy = ctx.saved_tensors
        if grad_log_probs is None and grad_entropy is None:
            return None, None, None, None
        grad_logits = torch.empty_like(logits)
        for start in range(0, len(targets), ctx.rows):
            part = slice(start, start + ctx.rows)
            log_p = _log_softmax(logits[part], ctx.temperature)
            probabilities = log_p.exp()
            if grad_entropy is None:
                grad = probabilities
            else:
                grad = log_p.clamp_(min=_LOWEST).add_(entropy[part].unsqueeze(1))
                grad.mul_(probabilities).mul_(-grad_entropy[part].unsqueeze(1))
            if grad_log_probs is not None:
                scale = grad_log_probs[part].unsqueeze(1)
                if grad_entropy is None:
                    grad.mul_(-scale)
                else:
                    grad.addcmul_(probabilities, scale, value=-1.0)
                grad.scatter_add_(1, targets[part].unsqueeze(1), scale)
            grad_logits[part] = grad.div_(ctx.temperature)
        return grad_logits, None, None, None


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    scaled = logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    return torch.log_softmax(scaled, dim=-1)
