"""Trajectories as tensors: right-padded token ids, and flat rows for the positions that are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """One trajectory as the learner sees it.

    Attributes:
        tokens: int32 [T], prompt, completion and tool observations.
        sampled: bool [T], true for tokens that the policy produced: those are trained on.
        log_probs: float32 [sampled.sum()], the sampler's log-probs of the sampled tokens, in order.
        advantage: one number for all its tokens, or float [sampled.sum()]: one for each sampled token.
        staleness: int32 [sampled.sum()], versions the learner is ahead of each sampled token; None: not needed.
        returns: float [sampled.sum()], what a critic learns for each sampled token; None: there is no critic.
        values: float [sampled.sum()], what the critic said of it before; None: there is no critic.
    """

    tokens: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.bool_]
    log_probs: npt.NDArray[np.float32]
    advantage: float | npt.NDArray[np.floating[Any]] = 0.0
    staleness: npt.NDArray[np.int32] | None = None
    returns: npt.NDArray[np.floating[Any]] | None = None
    values: npt.NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass needs. N is the number of trained tokens in it.

    Attributes:
        input_ids: int64 [B, T], every trajectory without its last token, right-padded with 0.
        attention_mask: int64 [B, T], at least one 1 in each row, padding last.
        positions: int64 [N], index into the flattened [B * T] hidden states that predict the trained tokens.
        targets: int64 [N].
        sampler_log_probs: float32 [N].
        advantages: float32 [N].
        sequence_ids: int64 [N], row of each trained token.
        shared: int64 [B, 2], an earlier row that begins with the same prompt, and the prompt's length (a row that shares
            nothing: itself, 0); None: no row does.
        staleness: int64 [N], versions the learner is ahead of the token; None: not needed.
        old_log_probs: float32 [N] from before the batch's first update; None: one update, the current ones serve.
        returns: float32 [N], what the critic learns; None: there is no critic.
        old_values: float32 [N], the critic's from before the batch's first update; None: there is no critic.
    """

    input_ids: Tensor
    attention_mask: Tensor
    positions: Tensor
    targets: Tensor
    sampler_log_probs: Tensor
    advantages: Tensor
    sequence_ids: Tensor
    shared: Tensor | None = None
    staleness: Tensor | None = None
    old_log_probs: Tensor | None = None
    returns: Tensor | None = None
    old_values: Tensor | None = None


def collate(samples: Sequence[Sample], device: torch.device | str = "cpu") -> MicroBatch:
    """Pads on the right to the longest.

    A first token is never trained on: nothing predicts it. A last token is never an input: it predicts nothing.
    """
    longest = max(len(sample.tokens) for sample in samples)
    width = max(1, longest - 1)
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    mask = np.zeros((len(samples), width), dtype=np.int64)
    trained = np.zeros((len(samples), longest), dtype=np.bool_)
    log_probs = np.zeros((len(samples), longest), dtype=np.float32)
    advantages = np.zeros((len(samples), longest), dtype=np.float32)
    staleness = np.zeros((len(samples), longest), dtype=np.int64)
    returns, values = np.zeros_like(advantages), np.zeros_like(advantages)
    for row, sample in enumerate(samples):
        length = len(sample.tokens)
        ids[row, :length] = sample.tokens
        mask[row, : max(1, length - 1)] = 1
        trained[row, :length] = sample.sampled
        log_probs[row, :length][sample.sampled] = sample.log_probs
        advantages[row, :length][sample.sampled] = sample.advantage
        if sample.staleness is not None:
            staleness[row, :length][sample.sampled] = sample.staleness
        if sample.returns is not None and sample.values is not None:
            returns[row, :length][sample.sampled] = sample.returns
            values[row, :length][sample.sampled] = sample.values
    trained[:, 0] = False
    shared = _shared_prompts(samples)
    rows, columns = np.nonzero(trained)
    aged = any(sample.staleness is not None for sample in samples)
    valued = any(sample.returns is not None for sample in samples)

    def tensor(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return MicroBatch(
        input_ids=tensor(np.where(mask, ids[:, :width], 0)),
        attention_mask=tensor(mask),
        positions=tensor(rows * width + columns - 1),
        targets=tensor(ids[rows, columns]),
        sampler_log_probs=tensor(log_probs[rows, columns]),
        advantages=tensor(advantages[rows, columns]),
        sequence_ids=tensor(rows),
        shared=tensor(shared) if shared[:, 1].any() else None,
        staleness=tensor(staleness[rows, columns]) if aged else None,
        returns=tensor(returns[rows, columns]) if valued else None,
        old_values=tensor(values[rows, columns]) if valued else None,
    )


def _shared_prompts(samples: Sequence[Sample]) -> npt.NDArray[np.int64]:
    """`MicroBatch.shared`: the answers of a group have their prompt in common, up to the first sampled token."""
    rows: dict[bytes, int] = {}
    shared = np.zeros((len(samples), 2), dtype=np.int64)
    for row, sample in enumerate(samples):
        # Not the last token: it is no input.
        length = min(int(sample.sampled.argmax()), len(sample.tokens) - 1) if sample.sampled.any() else 0
        first = rows.setdefault(sample.tokens[:length].tobytes(), row)
        shared[row] = (first, length if first != row else 0)
    return shared
