"""What the learners answer, as plain values: the driver reads them, and imports no torch for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_trainer.checkpoint.tensor_file import Digests, FileHead


@dataclass(frozen=True)
class UpdateResult:
    """What one training step did; the same on every rank.

    Attributes:
        metrics: means over trained tokens (`loss_metrics.metric_means`), over all ranks and mini-batches.
        grad_norm: norm before clipping, mean over optimizer steps.
        learning_rate: of the last optimizer step.
        optimizer_steps: steps taken.
        skipped: steps not taken because loss or gradient was not a number.
        stopped_early: mini-batches left out because the importance ratio passed `algorithm.ratioBound`.
    """

    metrics: dict[str, float]
    grad_norm: float
    learning_rate: float
    optimizer_steps: int
    skipped: int
    stopped_early: int


@dataclass(frozen=True)
class TokenEstimates:
    """What the learners say of sampled tokens before the advantages, for each answer an array [S_i].

    Attributes:
        kl: estimate of the KL against the reference; None where that is not part of the reward.
        values: the critic's values; None where there is no critic.
    """

    kl: list[npt.NDArray[np.float64]] | None = None
    values: list[npt.NDArray[np.float64]] | None = None


@dataclass(frozen=True)
class Begun:
    """What a rank says of its part of what is saved.

    Attributes:
        files: names of all its files, whoever writes them.
        heads: of those that it cannot write itself.
        weight_map: of rank 0: file by tensor of all weights.
        weight_bytes: of all weights.
        uploads: whether its files go to the object store.
        refused: why they do not, though they were to; empty: they do.
    """

    files: tuple[str, ...]
    heads: tuple[FileHead, ...]
    weight_map: Mapping[str, str]
    weight_bytes: int
    uploads: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Written:
    """How far a rank is: bytes that its thread has written, and of its files, when all are on disk, size and SHA-256."""

    done: int
    digests: Digests | None
