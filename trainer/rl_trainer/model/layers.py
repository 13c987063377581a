"""The small operators between the matrix products: RMS norm, rotary positions, SwiGLU.

PyTorch composes the first and the last from many small kernels on a CPU; for models whose layers take
microseconds these dominate. The versions here do the same arithmetic with fewer passes and hand-written
gradients.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from rl_trainer.model.config import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Rotations in radians per position, float32 [D / 2].

    Default: theta^(-2i/D) (Su et al. 2021, RoFormer, section 3.2.2). linear: divided by the factor. llama3:
    long wavelengths divided, short ones kept, the ones between interpolated, as the Hugging Face library's
    llama3 type.
    """
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**steps)
    if rope.type == "linear":
        return frequencies / rope.factor
    if rope.type == "llama3":
        wavelength = 2 * math.pi / frequencies
        longest = rope.original_max_positions / rope.low_freq_factor
        shortest = rope.original_max_positions / rope.high_freq_factor
        smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        between = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
        scaled = torch.where(wavelength > longest, frequencies / rope.factor, frequencies)
        return torch.where((wavelength <= longest) & (wavelength >= shortest), between, scaled)
    return frequencies


def rotation_table(rope: Rope, head_dim: int, length: int, device: torch.device) -> torch.Tensor:
    """Unit complex numbers exp(i * position * frequency), complex64 [length, D / 2]."""
    positions = torch.arange(length, device=device).float()
    angles = torch.outer(positions, inverse_frequencies(rope, head_dim).to(device))
    return torch.complex(angles.cos(), angles.sin())


def rotate(heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Rotary positions for interleaved heads: [..., N, D] times complex [..., 1, D / 2]; returns a new tensor."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))  # type: ignore[no-untyped-call]
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)


class _RMSNorm(torch.autograd.Function):
    """y = x * w / sqrt(mean(x^2) + eps) over the last dimension, float32 (Zhang and Sennrich 2019, equation 4)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        scale = inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        product = grad * normed
        weight_grad = product.flatten(0, -2).sum(0)
        # dx = s * (g w - n * mean(g w n)) with n = x s: the norm's own derivative along n is taken out.
        along = (product @ weight).unsqueeze(-1).mul_(1.0 / x.shape[-1])
        x_grad = torch.addcmul(grad * weight, normed, along, value=-1.0).mul_(scale)
        return x_grad, weight_grad, None


def inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last dimension, kept: [..., H] -> [..., 1]."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()  # type: ignore[no-any-return]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm with weight over the last dimension: [..., H] -> [..., H]; in fp32 where x is, whatever the weight's type."""
    if x.dtype == torch.float32 != weight.dtype:
        weight = weight.float()
    if x.device.type == "cpu" and x.dtype == torch.float32:
        if torch.is_grad_enabled():
            return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]
        return (x * inverse_rms(x, eps)).mul_(weight)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up of a fused [..., 2 I] tensor (Shazeer 2020, equation 6), with the gradient written into one tensor."""

    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        gate_grad, up_grad = result.chunk(2, dim=-1)
        torch.mul(grad, F.silu(gate), out=up_grad)
        gate_grad.copy_(torch.ops.aten.silu_backward(grad * up, gate))
        return result


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [..., 2 I] -> [..., I]."""
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _SwiGLU.apply(gate_up)  # type: ignore[no-any-return, no-untyped-call]
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
