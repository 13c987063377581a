"""Trajectories as tensors: right-padded token ids, and flat rows for the positions that are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_trainer.algorithms.value_targets import ValueTargets
from rl_trainer.trajectory import Trajectory


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
        idle: whether nothing is learned from it: its rank runs it so that others find it in their collectives.
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
    idle: bool = False


def idle_batch(device: torch.device | str = "cpu") -> MicroBatch:
    """One token from which nothing is learned."""
    none, zero = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, device=device)
    return MicroBatch(
        input_ids=none[None],
        attention_mask=torch.ones_like(none[None]),
        positions=none,
        targets=none,
        sampler_log_probs=zero,
        advantages=zero,
        sequence_ids=none,
        returns=zero,
        old_values=zero,
        idle=True,
    )


def collate(
    samples: Sequence[Trajectory], device: torch.device | str = "cpu", version: int | None = None
) -> MicroBatch:
    """Pads on the right to the longest. `version`: of the weights that are trained, where the loss asks for staleness.

    A first token is never trained on: nothing predicts it. A last token is never an input: it predicts nothing.
    """
    longest = max(len(sample.tokens) for sample in samples)
    width = max(1, longest - 1)
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    mask = np.zeros((len(samples), width), dtype=np.int64)
    trained = np.zeros((len(samples), longest), dtype=np.bool_)
    log_probs = np.zeros((len(samples), longest), dtype=np.float32)
    advantages = np.zeros((len(samples), longest), dtype=np.float32)
    versions = np.zeros((len(samples), longest), dtype=np.int64)
    returns, values = np.zeros_like(advantages), np.zeros_like(advantages)
    for row, sample in enumerate(samples):
        length = len(sample.tokens)
        ids[row, :length] = sample.tokens
        mask[row, : max(1, length - 1)] = 1
        trained[row, :length] = sample.mask
        log_probs[row, :length][sample.mask] = sample.log_probs
        versions[row, :length][sample.mask] = sample.versions
        advantage = sample.advantage
        if isinstance(advantage, ValueTargets):
            returns[row, :length][sample.mask] = advantage.returns
            values[row, :length][sample.mask] = advantage.values
            advantage = advantage.advantages
        advantages[row, :length][sample.mask] = advantage
    trained[:, 0] = False
    shared = _shared_prompts(samples)
    rows, columns = np.nonzero(trained)
    valued = any(isinstance(sample.advantage, ValueTargets) for sample in samples)

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
        staleness=None if version is None else tensor(version - versions[rows, columns]),
        returns=tensor(returns[rows, columns]) if valued else None,
        old_values=tensor(values[rows, columns]) if valued else None,
    )


def _shared_prompts(samples: Sequence[Trajectory]) -> npt.NDArray[np.int64]:
    """`MicroBatch.shared`: the answers of a group have their prompt in common, up to the first sampled token."""
    rows: dict[bytes, int] = {}
    shared = np.zeros((len(samples), 2), dtype=np.int64)
    for row, sample in enumerate(samples):
        # Not the last token: it is no input.
        length = min(int(sample.mask.argmax()), len(sample.tokens) - 1) if sample.mask.any() else 0
        first = rows.setdefault(sample.tokens[:length].tobytes(), row)
        shared[row] = (first, length if first != row else 0)
    return shared
