"""An objective of your own: `own-algorithm.yaml` names it as `own_objective:tapered`."""

from __future__ import annotations

import torch

from rl_trainer.algorithms.policy_losses import LossInputs


def tapered(inputs: LossInputs) -> torch.Tensor:
    """Tapered off-policy REINFORCE (TOPR, arXiv 2503.14286): what was bad counts by how likely it still is.

    `-A l` where A >= 0, and `-A l clip(pi / mu, 0, 1)` where A < 0: an answer that the policy has already left is not
    pushed away for ever.

    Args:
        inputs: tensors of one number per token; `log_probs` carries the gradient. All of them are 0 on tokens that are
            not trained on.

    Returns:
        One loss per token. The sum over the batch, its denominator, KL and entropy are the trainer's.
    """
    assert inputs.sampler_log_probs is not None
    ratio = torch.exp(inputs.log_probs - inputs.sampler_log_probs).detach()
    factor = torch.where(inputs.advantages < 0, ratio.clamp(max=1.0), 1.0)
    return -factor * inputs.advantages * inputs.log_probs
