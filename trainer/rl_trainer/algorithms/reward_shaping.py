"""What is added to the task's rewards before the advantages: length penalty, KL. Pure functions in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
KlEstimator = Literal["k1", "k2", "k3"]


def overlong_penalty(lengths: npt.ArrayLike, max_length: int, buffer: float, penalty: float) -> Floats:
    """Soft punishment of answers that come near the length limit, <= 0 (DAPO's soft overlong punishment).

    `-penalty * clip((length - (max_length - b)) / b, 0, 1)` with `b = buffer * max_length` tokens: 0 up to
    `max_length - b`, then falling in a straight line, `-penalty` at `max_length` and beyond (arXiv 2503.14476, where
    the limit is 20,480 tokens and b 4,096: buffer 0.2, penalty 1).

    Args:
        lengths: [N] sampled tokens of each answer.
        max_length: the limit in tokens, >= 1 (`sampler.maxNewTokens`).
        buffer: share of the limit, 0 to 1; 0: no penalty.
        penalty: the most that is taken away, >= 0.

    Returns:
        [N], to be added to the rewards.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    room = buffer * max_length
    if room == 0.0:
        return np.zeros_like(tokens)
    return -penalty * np.clip((tokens - (max_length - room)) / room, 0.0, 1.0)


def kl_estimates(
    log_probs: npt.ArrayLike, reference_log_probs: npt.ArrayLike, estimator: KlEstimator
) -> Floats:
    """Value of the estimate of KL(pi || reference) per token, as `losses.kl_penalty`, for use as a reward.

    With `d = l_ref - l`: k1 `-d` (unbiased; the usual choice here, where no gradient flows through it), k2 `d^2 / 2`,
    k3 `exp(d) - d - 1` with d at most 20.

    Args:
        log_probs: of the policy that sampled, or the proximal one, any shape. reference_log_probs: the same shape.
        estimator: k1, k2 or k3.
    """
    difference = np.asarray(reference_log_probs, np.float64) - np.asarray(log_probs, np.float64)
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference**2
    limited = np.minimum(difference, 20.0)
    found: Floats = np.expm1(limited) - limited
    return found


def penalized_rewards(rewards: npt.ArrayLike, token_kl: Sequence[Floats], coefficient: float) -> Floats:
    """KL as a reward, one number per answer: `R_i - coefficient * sum over its tokens of kl`.

    For estimators that compare whole answers (groupMean, leaveOneOut, maxRl).

    Args:
        rewards: [N]. token_kl: N arrays [S_i]. coefficient: >= 0.
    """
    values = np.array(rewards, dtype=np.float64)
    return values - coefficient * np.array([part.sum() for part in token_kl], dtype=np.float64)


def token_rewards(
    rewards: npt.ArrayLike, lengths: Sequence[int], token_kl: Sequence[Floats] | None, coefficient: float
) -> list[Floats]:
    """KL as a reward, per token: `-coefficient * kl_t`, and the answer's reward on its last sampled token.

    For estimators with a reward per token (batchNormalized, GAE).

    Args:
        rewards: [N]. lengths: N numbers of sampled tokens S_i. token_kl: N arrays [S_i]; None: no KL.
        coefficient: >= 0.

    Returns:
        N arrays [S_i].
    """
    values = np.asarray(rewards, dtype=np.float64)
    parts = []
    for index, length in enumerate(lengths):
        part = (
            np.zeros(length) if token_kl is None else -coefficient * np.asarray(token_kl[index], np.float64)
        )
        if length:
            part[-1] += values[index]
        parts.append(part)
    return parts


def token_returns(rewards: Sequence[Floats], gamma: float = 1.0) -> list[Floats]:
    """Discounted reward-to-go of every sampled token: `G_t = r_t + gamma G_{t+1}`.

    Args:
        rewards: N arrays [S_i], of `token_rewards`. gamma: discount per sampled token, 0 to 1.

    Returns:
        N arrays [S_i].
    """
    returns = []
    for part in rewards:
        if gamma == 1.0:
            returns.append(np.cumsum(part[::-1])[::-1])
            continue
        going = np.zeros(len(part))
        total = 0.0
        for t in range(len(part) - 1, -1, -1):
            total = float(part[t]) + gamma * total
            going[t] = total
        returns.append(going)
    return returns
