"""The objectives: from log-probs and advantages to one loss per token. Pure functions.

Notation as in `losses`: `l` log-prob under the policy being trained (the only one with a gradient), `l_old` under the
proximal policy, `l_mu` as the sampler reported it, `A` advantage, `r = exp(clamp(l - l_old, -20, 20))`, `sg`
stop-gradient, `lo` and `hi` the widths `algorithm.clip.low` and `.high`. Importance weights between sampler and
trainer, aggregation, KL and entropy are not in here: `losses.policy_loss` adds them, the same for every objective.

Shapes: every tensor is `[B, T]` padded, or `[N]` flat with `sequence_ids`. Outside the mask all inputs are 0, and what
is returned there does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rl_trainer.algorithms.tokens import limited_exp, sequence_means

Objective = Literal["ppoClip", "gspo", "cispo", "dppo", "reinforce"]


@dataclass(frozen=True)
class LossInputs:
    """What an objective is given; also a user's own (`algorithm.name: module:function`).

    Float tensors are float32 (float64 where the log-probs are), 0 outside the mask.

    Attributes:
        log_probs: `l`, with gradient.
        old_log_probs: `l_old`; equal to `l` (detached) with one update per batch.
        advantages: `A`, per token.
        trained: bool mask of the trained tokens.
        sampler_log_probs: `l_mu`, or None where they are not known.
        reference_log_probs: of the KL reference, or None where the run has none.
        entropy: of each token's distribution, with gradient; None where it is not measured.
        sequence_ids: of flat tokens, the sequence of each; None for padded rows.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    trained: Tensor
    sampler_log_probs: Tensor | None = None
    reference_log_probs: Tensor | None = None
    entropy: Tensor | None = None
    sequence_ids: Tensor | None = None

    def ratio(self) -> Tensor:
        """`r`, with gradient inside the limit."""
        return limited_exp(self.log_probs - self.old_log_probs)


class TokenLosses(NamedTuple):
    """One loss per token, and which tokens were clipped (bool, no gradient; None: the objective does not clip).

    `clipped_low`: the lower bound of the ratio took the token's gradient away (or, in `cispo`, raised its factor);
    `clipped_high`: the upper bound.
    """

    loss: Tensor
    clipped_low: Tensor | None = None
    clipped_high: Tensor | None = None


UserObjective = Callable[[LossInputs], Tensor]
"""A user's own objective: token losses of the shape of `inputs.log_probs`."""


def ppo_clip(
    inputs: LossInputs, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> TokenLosses:
    """PPO's clipped objective: `max(-A r, -A clip(r, 1 - lo, 1 + hi))`.

    Schulman et al., arXiv 1707.06347; with `hi > lo` DAPO's clip-higher (arXiv 2503.14476). With `dual_clip` c > 1
    (Ye et al., arXiv 1912.09729) the loss of a token with A < 0 is at most `-c A`: a bad token whose ratio exploded
    (behind the clip's open side) has no gradient beyond it.
    """
    loss, low, high = _clipped(inputs.ratio(), inputs.advantages, clip_low, clip_high)
    if dual_clip is not None:
        bound = -dual_clip * inputs.advantages
        negative = inputs.advantages < 0
        with torch.no_grad():
            high = high | (negative & (loss > bound))
        loss = torch.where(negative, torch.minimum(loss, bound), loss)
    return TokenLosses(loss, low, high)


def gspo(inputs: LossInputs, clip_low: float, clip_high: float) -> TokenLosses:
    """Group sequence policy optimisation: PPO's clip of a ratio per sequence (Zheng et al., arXiv 2507.18071).

    `s = exp(mean over the sequence's tokens of (l - l_old))`; per token (the paper's GSPO-token, whose value and
    gradient are GSPO's where a sequence has one advantage) `s_t = sg(s) exp(l - sg(l))` and
    `max(-A s_t, -A clip(s_t, 1 - lo, 1 + hi))`. With aggregation `sequenceMean` the gradient of a sequence is
    `-s A (1/len) sum(grad l)`. The widths are small: the paper has lo 3e-4 and hi 4e-4.
    """
    log_ratio = (inputs.log_probs - inputs.old_log_probs).detach()
    sequence_ratio = limited_exp(sequence_means(log_ratio, inputs.trained, inputs.sequence_ids))
    ratio = sequence_ratio * (inputs.log_probs - inputs.log_probs.detach()).exp()
    return TokenLosses(*_clipped(ratio, inputs.advantages, clip_low, clip_high))


def cispo(inputs: LossInputs, clip_low: float, clip_high: float) -> TokenLosses:
    """Clipped importance weight, never a clipped token: `-sg(clip(r, 1 - lo, 1 + hi)) A l` (arXiv 2506.13585).

    Every token keeps a gradient, `-clip(r) A grad l`. The widths are about 1, as everywhere here: lo 1 means no lower
    bound (the paper's choice), and hi 4 a factor of at most 5.
    """
    ratio = inputs.ratio().detach()
    factor = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -factor * inputs.advantages * inputs.log_probs
    return TokenLosses(loss, ratio < 1.0 - clip_low, ratio > 1.0 + clip_high)


def dppo(inputs: LossInputs, clip_low: float, clip_high: float) -> TokenLosses:
    """Divergence PPO's mask: `-A r_mu`, and 0 for tokens whose probability moved too far (arXiv 2602.04879).

    `r_mu = exp(clamp(l - l_mu, -20, 20))` is the ratio to the *sampler*, so that no other importance weight belongs
    to it. A token is masked where A > 0 and `p - p_mu > hi`, or A < 0 and `p - p_mu < -lo`: the difference of the
    probabilities themselves, which is the token's share of the total variation. Rare tokens, whose ratio moves fast
    and whose probability hardly does, keep learning.

    Raises:
        ValueError: without `sampler_log_probs`.
    """
    if inputs.sampler_log_probs is None:
        raise ValueError("objective 'dppo' needs sampler_log_probs")
    with torch.no_grad():
        moved = inputs.log_probs.exp() - inputs.sampler_log_probs.exp()
        high = (inputs.advantages > 0) & (moved > clip_high)
        low = (inputs.advantages < 0) & (moved < -clip_low)
    loss = -inputs.advantages * limited_exp(inputs.log_probs - inputs.sampler_log_probs)
    return TokenLosses(torch.where(low | high, 0.0, loss), low, high)


def reinforce(inputs: LossInputs) -> TokenLosses:
    """Plain policy gradient: `-A l` (Williams 1992). Several updates per batch are not corrected for."""
    return TokenLosses(-inputs.advantages * inputs.log_probs)


def token_losses(
    objective: Objective,
    inputs: LossInputs,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> TokenLosses:
    """The objective of that name."""
    match objective:
        case "ppoClip":
            return ppo_clip(inputs, clip_low, clip_high, dual_clip)
        case "gspo":
            return gspo(inputs, clip_low, clip_high)
        case "cispo":
            return cispo(inputs, clip_low, clip_high)
        case "dppo":
            return dppo(inputs, clip_low, clip_high)
        case "reinforce":
            return reinforce(inputs)


def _clipped(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`max(-A r, -A clip(r, 1 - lo, 1 + hi))`, and where the lower and the upper clip is taken."""
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    with torch.no_grad():
        takes_clip = clipped > unclipped
        low, high = takes_clip & (advantages < 0), takes_clip & (advantages > 0)
    return torch.maximum(unclipped, clipped), low, high
