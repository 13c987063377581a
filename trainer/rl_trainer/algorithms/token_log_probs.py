"""Log-probs and entropy of sampled tokens, in fp32, without keeping a [tokens, vocabulary] matrix in fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# fp32 numbers of one chunk. On a CPU 256 KiB, which stay in its cache (measured: twice as fast as 32 MiB).
# On an accelerator, and through the output head, 64 MiB: enough to fill the device.
_CHUNK_CPU = 2**16
_CHUNK_LARGE = 2**24
LOWEST = -1e30
"""Stands for -inf where it would meet a probability of 0."""


def chunk_values(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [N], fp32, of logits [N, V]; see `token_log_probs` for the formulas."""
    log_p = _log_softmax(logits, temperature)
    log_probs = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    return log_probs, -(log_p.exp() * log_p.clamp_(min=LOWEST)).sum(dim=1)


def chunk_gradient(
    logits: Tensor,
    targets: Tensor,
    entropy: Tensor,
    grad_log_probs: Tensor | None,
    grad_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """Gradient [N, V], fp32, of the logits; one of the two given gradients [N] is not None."""
    log_p = _log_softmax(logits, temperature)
    probabilities = log_p.exp()
    if grad_entropy is None:
        grad = probabilities
    else:
        grad = log_p.clamp_(min=LOWEST).add_(entropy.unsqueeze(1))
        grad.mul_(probabilities).mul_(-grad_entropy.unsqueeze(1))
    if grad_log_probs is not None:
        scale = grad_log_probs.unsqueeze(1)
        if grad_entropy is None:
            grad.mul_(-scale)
        else:
            grad.addcmul_(probabilities, scale, value=-1.0)
        grad.scatter_add_(1, targets.unsqueeze(1), scale)
    return grad.div_(temperature)


class Kernels(NamedTuple):
    """What is computed of a chunk of logits: `chunk_values` and `chunk_gradient`, or the same otherwise."""

    values: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] = chunk_values
    gradient: Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, float], Tensor] = chunk_gradient


PLAIN = Kernels()

Fused = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Log-probs [N] at temperature 1 from hidden states [N, H], head [V, H], targets [N] and rows at a time."""


@dataclass(frozen=True)
class HeadWay:
    """A way to compute `head_token_log_probs`.

    Attributes:
        name: for people.
        kernels: of each chunk.
        fused: takes the place of chunks and kernels. It knows no entropy, which costs another product with the head then
            and has no gradient.
    """

    name: str
    kernels: Kernels = PLAIN
    fused: Fused | None = None


OURS = HeadWay("ours")
"""Chunk by chunk by torch's plain operations: on every device, and what the other ways are held against."""


def token_log_probs(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    kernels: Kernels = PLAIN,
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
        kernels: of each chunk.

    Returns:
        (log-probs, entropy in nats), float32, the shape of `targets`. A gradient that nobody asks for costs
        nothing.

    Raises:
        ValueError: the temperature is not above 0, or shapes do not fit.
    """
    _check_temperature(temperature)
    if logits.shape[:-1] != targets.shape:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit targets {tuple(targets.shape)}")
    vocabulary = logits.shape[-1]
    rows = chunk or _rows(logits.device, vocabulary)
    flat = logits.reshape(-1, vocabulary)
    log_probs, entropy = _TokenLogProbs.apply(  # type: ignore[no-untyped-call]
        flat, targets.reshape(-1).long(), float(temperature), rows, kernels
    )
    return log_probs.view(targets.shape), entropy.view(targets.shape)


def head_token_log_probs(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    *,
    way: HeadWay = OURS,
    entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """`token_log_probs` of `hidden @ head_weight.T`, chunk by chunk: the logits never exist as a whole.

    Where they are more than one chunk the head is computed twice (again in the backward pass, where the gradient takes
    the place of the logits), and what is held beside the inputs and their gradients is one chunk, whatever the
    vocabulary and the number of tokens. 16,384 tokens of a 152,000-token vocabulary would be 10 GB of logits in fp32,
    and as much again for their gradient. Under autocast the products are in its type, the rest in fp32.

    Args:
        hidden: [N, H] final hidden states of the positions that predict the targets.
        head_weight: [V, H] weight of the output head.
        targets: [N]. temperature, returns, raises: as `token_log_probs`.
        chunk: rows at a time; default: as many as make 64 MiB of fp32 logits.
        way: to compute it; see `head_ways`.
        entropy: False: nobody wants it, so where it would cost something it is zeros.
    """
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} must be [N, H] and targets {tuple(targets.shape)} [N]"
        )
    rows = chunk or head_rows(head_weight.shape[0])
    if way.fused is not None and len(targets):
        return _fused(way.fused, hidden, head_weight, targets.long(), temperature, rows, entropy)
    if len(targets) <= rows:
        return token_log_probs(F.linear(hidden, head_weight), targets, temperature, kernels=way.kernels)
    _check_temperature(temperature)
    log_probs, entropies = _HeadTokenLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden, head_weight, targets.long(), float(temperature), rows, _products(hidden), way.kernels
    )
    return log_probs, entropies


def head_rows(vocabulary: int) -> int:
    """Rows of a chunk of `head_token_log_probs`, where nothing else is said."""
    return max(1, _CHUNK_LARGE // vocabulary)


def _products(hidden: Tensor) -> torch.dtype:
    """The type that products with hidden states are in."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def _fused(
    run: Fused,
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float,
    rows: int,
    entropy: bool,
) -> tuple[Tensor, Tensor]:
    _check_temperature(temperature)
    dtype = _products(hidden)
    # Kernels know no temperature: logits are divided by it where hidden states are, before these are rounded.
    states = hidden if temperature == 1.0 else hidden.float() / temperature
    with torch.autocast(hidden.device.type, enabled=False):
        log_probs = run(states.to(dtype), head_weight.to(dtype), targets, rows).float()
    if not entropy:
        return log_probs, torch.zeros_like(log_probs)
    with torch.no_grad():
        return log_probs, head_token_log_probs(hidden, head_weight, targets, temperature, rows)[1]


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, must be above 0 to train")


def _rows(device: torch.device, vocabulary: int) -> int:
    """Rows of logits whose softmax is taken at once."""
    numbers = _CHUNK_CPU if device.type == "cpu" else _CHUNK_LARGE
    return max(1, numbers // vocabulary)


class _TokenLogProbs(torch.autograd.Function):
    """The chunked computation; see `token_log_probs` for the formulas."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, rows: int, kernels: Kernels
    ) -> tuple[Tensor, Tensor]:
        log_probs = logits.new_empty(len(targets), dtype=torch.float32)
        entropy = torch.empty_like(log_probs)
        _values(kernels, logits, targets, temperature, rows, log_probs, entropy)
        ctx.save_for_backward(logits, targets, entropy)
        ctx.temperature, ctx.rows, ctx.kernels = temperature, rows, kernels
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Any, ...]:
        logits, targets, entropy = ctx.saved_tensors
        if grad_log_probs is None and grad_entropy is None:
            return (None,) * 5
        grad_logits = torch.empty_like(logits)
        _gradients(
            ctx.kernels,
            logits,
            targets,
            entropy,
            grad_log_probs,
            grad_entropy,
            ctx.temperature,
            ctx.rows,
            grad_logits,
        )
        return grad_logits, None, None, None, None


class _HeadTokenLogProbs(torch.autograd.Function):
    """The same through the head: logits of a chunk are made, used and, in the backward pass, made again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        rows: int,
        dtype: torch.dtype,
        kernels: Kernels,
    ) -> tuple[Tensor, Tensor]:
        log_probs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy = torch.empty_like(log_probs)
        inner = _rows(hidden.device, len(weight))
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(dtype)
            for start in range(0, len(targets), rows):
                part = slice(start, start + rows)
                logits = F.linear(hidden[part].to(dtype), head)
                _values(kernels, logits, targets[part], temperature, inner, log_probs[part], entropy[part])
                del logits  # before the next chunk's exist
        ctx.save_for_backward(hidden, weight, targets, entropy)
        ctx.temperature, ctx.rows, ctx.dtype, ctx.kernels = temperature, rows, dtype, kernels
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Any, ...]:
        hidden, weight, targets, entropy = ctx.saved_tensors
        if grad_log_probs is None and grad_entropy is None:
            return (None,) * 7
        inner = _rows(hidden.device, len(weight))
        hidden_grad = torch.empty_like(hidden)
        # Sums over chunks lose digits in half precision.
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(ctx.dtype)
            for start in range(0, len(targets), ctx.rows):
                part = slice(start, start + ctx.rows)
                states = hidden[part].to(ctx.dtype)
                logits = F.linear(states, head)
                _gradients(
                    ctx.kernels,
                    logits,
                    targets[part],
                    entropy[part],
                    None if grad_log_probs is None else grad_log_probs[part],
                    None if grad_entropy is None else grad_entropy[part],
                    ctx.temperature,
                    inner,
                    logits,
                )
                hidden_grad[part] = logits @ head
                if weight_grad is not None and ctx.dtype == torch.float32:
                    weight_grad.addmm_(logits.T, states)
                elif weight_grad is not None:
                    weight_grad += logits.T @ states
                del logits
        if weight_grad is not None:
            weight_grad = weight_grad.to(weight.dtype)
        return hidden_grad, weight_grad, None, None, None, None, None


def _values(
    kernels: Kernels,
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    rows: int,
    log_probs: Tensor,
    entropy: Tensor,
) -> None:
    """Log-probs and entropies of logits [N, V] into `log_probs` and `entropy` [N]."""
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        log_probs[part], entropy[part] = kernels.values(logits[part], targets[part], temperature)


def _gradients(
    kernels: Kernels,
    logits: Tensor,
    targets: Tensor,
    entropy: Tensor,
    grad_log_probs: Tensor | None,
    grad_entropy: Tensor | None,
    temperature: float,
    rows: int,
    into: Tensor,
) -> None:
    """Gradient of the logits into `into` [N, V], which may be `logits`; one of the two given gradients is not None."""
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        into[part] = kernels.gradient(
            logits[part],
            targets[part],
            entropy[part],
            None if grad_log_probs is None else grad_log_probs[part],
            None if grad_entropy is None else grad_entropy[part],
            temperature,
        )


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    scaled = logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    return torch.log_softmax(scaled, dim=-1)
