"""From logits to tokens: temperature, top-k, top-p, and a choice that depends on (seed, position) alone.

Pure functions over batches. A sequence's random numbers come from a counter (its seed and the index of the
token), not from a generator's state, so a sequence samples the same tokens whatever else is in the batch,
before and after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class BatchSampling:
    """The sampling parameters of a batch of n sequences, as tensors; None where no sequence needs the
    treatment.

    `inverse_temperature` float32 [n, 1] (1 for greedy rows), `greedy` bool [n], `top_k` int64 [n] (vocabulary
    size: off), `top_p` float32 [n].
    """

    inverse_temperature: torch.Tensor | None = None
    greedy: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        temperature: npt.NDArray[np.float32],
        top_k: npt.NDArray[np.int64],
        top_p: npt.NDArray[np.float32],
        vocab_size: int,
        device: torch.device,
    ) -> BatchSampling:
        """Gather per-sequence parameters (each [n]; temperature 0: greedy, top_k 0: off, top_p 1: off)."""
        greedy = temperature == 0.0
        divisor = np.where(greedy, np.float32(1.0), temperature)
        limit = np.where(top_k == 0, vocab_size, np.minimum(top_k, vocab_size))
        return cls(
            inverse_temperature=_tensor(1.0 / divisor[:, None], device) if np.any(divisor != 1.0) else None,
            greedy=_tensor(greedy, device) if greedy.any() else None,
            top_k=_tensor(limit, device) if np.any(limit < vocab_size) else None,
            top_p=_tensor(top_p, device) if np.any(top_p < 1.0) else None,
        )


def _tensor(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Uniform numbers in [0, 1), float32 [n], one for each (seed, position); both [n].

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014, figure 16) applied to the seed and then, along
    the generator's own sequence, to the position; the upper 24 bits become the fraction.
    """
    with np.errstate(over="ignore"):
        state = _mix(seeds + _GOLDEN) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        bits = _mix(state) >> np.uint64(40)
    return bits.astype(np.float32) * np.float32(2.0**-24)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def distribution(logits: torch.Tensor, sampling: BatchSampling) -> torch.Tensor:
    """Probabilities float32 [n, V] of logits [n, V] at each row's temperature, after top-k and then top-p.

    Top-k keeps the k largest logits and those equal to the k-th. Top-p keeps the smallest set of most
    probable tokens whose probability reaches p (Holtzman et al. 2020, section 3.1). What is left is
    normalised again.
    """
    scaled = logits.float()
    if sampling.inverse_temperature is not None:
        scaled = scaled * sampling.inverse_temperature
    if sampling.top_k is not None or sampling.top_p is not None:
        scaled = _cut(scaled, sampling)
    return torch.softmax(scaled, dim=-1)


def _cut(scaled: torch.Tensor, sampling: BatchSampling) -> torch.Tensor:
    """Set logits outside top-k and top-p to minus infinity; greedy rows keep all, theirs is a report, not a draw."""
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    keep_sorted = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k is not None:
        smallest = ordered.gather(1, sampling.top_k[:, None] - 1)
        keep_sorted &= ordered >= smallest
    if sampling.top_p is not None:
        probabilities = torch.softmax(ordered.masked_fill(~keep_sorted, -torch.inf), dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        # The most probable token always stays: the mass before it is 0, and p is above 0.
        keep_sorted &= (before < sampling.top_p[:, None]) | (sampling.top_p[:, None] >= 1.0)
    keep = torch.empty_like(keep_sorted).scatter_(1, order, keep_sorted)
    if sampling.greedy is not None:
        keep |= sampling.greedy[:, None]
    return scaled.masked_fill(~keep, -torch.inf)


def choose(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw by the inverse distribution function: int64 [n] for probabilities [n, V] and uniform [n] in [0,
    1).

    The token is the first whose cumulated probability exceeds uniform * total. A token of probability 0 is
    never drawn: it does not raise the sum, and uniform <= 1 - 2^-24 keeps the product below the total in
    float32.
    """
    cumulated = probabilities.cumsum(dim=-1)
    target = uniform[:, None] * cumulated[:, -1:]
    found = torch.searchsorted(cumulated, target, right=True)
    # Beyond the end only for rows that hold NaN: a token must come out, the log-probability tells.
    return found.squeeze(1).clamp_(max=probabilities.shape[1] - 1)


def most_probable(
    logits: torch.Tensor, sampling: BatchSampling, counts: Sequence[int]
) -> list[tuple[tuple[int, float], ...]]:
    """For each row of logits [n, V] so many of its most probable tokens, with log-probabilities as those of `sample`."""
    whole = distribution(logits, replace(sampling, top_k=None, top_p=None)).log_()
    found = whole.topk(min(max(counts), logits.shape[1]))
    rows = zip(found.indices.tolist(), found.values.tolist(), counts, strict=True)
    return [tuple(zip(ids[:count], values[:count], strict=True)) for ids, values, count in rows]


def sample(
    logits: torch.Tensor, uniform: torch.Tensor, sampling: BatchSampling
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its log-probability: logits [n, V], uniform float32 [n] -> int64 [n], float32
    [n].

    Drawn after top-k and top-p. The log-probability is the token's among all, at the row's temperature: the learner
    measures the same, and what was cut is no distance between the two. For greedy rows that of the plain softmax.
    """
    probabilities = distribution(logits, sampling)
    tokens = choose(probabilities, uniform)
    if sampling.greedy is not None:
        tokens = torch.where(sampling.greedy, logits.argmax(dim=-1), tokens)
    if sampling.top_k is not None or sampling.top_p is not None:
        probabilities = distribution(logits, replace(sampling, top_k=None, top_p=None))
    return tokens, probabilities.gather(1, tokens[:, None]).squeeze(1).log_()
