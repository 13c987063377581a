"""Whether a model may pack several sequences into a row: it is asked, with a few tokens, when it is opened.

The library has families whose sequences would see each other there (recurrent layers, masks of their own making) or stand at
wrong positions, and no list says which.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rl_trainer.learner.batch import MicroBatch
from rl_trainer.learner.policy import Policy

# Rows of 8 tokens: the second one holds the last two sequences.
_LENGTHS = (8, 5, 3)
# Log-probs may differ by rounding: between two ways to compute, and where only others' tokens are different.
_SAME = {False: 1e-4, True: 0.05}  # in bfloat16 or not
_UNSEEN = {False: 1e-5, True: 1e-3}


@torch.no_grad()
def packing_is_exact(policy: Policy, device: torch.device) -> bool:
    """Whether log-probs of sequences that share a row are those of each by itself. Ranks that share a model ask together.

    The other sequences of a row must not matter at all: their tokens are changed, and what follows has to stay.
    """
    model = policy.model
    if not model.packable:
        return False
    batch, others = (_batch(device, first, model.vocab_size) for first in (0, 1))  # type: ignore[arg-type]
    others = replace(others, targets=batch.targets)
    last = batch.sequence_ids == len(_LENGTHS) - 1
    packs = model.packs
    found = []
    try:
        for model.packs, one in ((False, batch), (True, batch), (True, others)):  # type: ignore[assignment]
            found.append(policy(one, 1.0)[0])
    finally:
        model.packs = packs
    padded, packed, changed = found
    half = _half(policy, device)
    same = _agree(padded, packed, half)
    return bool(same and (packed - changed)[last].abs().max() <= _UNSEEN[half])


@torch.no_grad()
def short_log_probs(policy: Policy, device: torch.device) -> Tensor:
    """Log-probs [N] of a few short sequences, always the same. Ranks that share a model or sequences ask together."""
    log_probs: Tensor = policy(_batch(device, 0, policy.model.vocab_size), 1.0)[0]  # type: ignore[arg-type]
    return log_probs


def same_log_probs(policy: Policy, device: torch.device, before: Tensor) -> bool:
    """Whether `short_log_probs` are what they were, to rounding."""
    return _agree(short_log_probs(policy, device), before, _half(policy, device))


def _agree(found: Tensor, expected: Tensor, half: bool) -> bool:
    return bool((found - expected).abs().max() <= _SAME[half])


def _half(policy: Policy, device: torch.device) -> bool:
    with policy.precision():
        return torch.is_autocast_enabled(device.type)


def _batch(device: torch.device, first: int, vocabulary: int) -> MicroBatch:
    """Sequences of a few tokens; all but the last begin with `first` and differ by it."""
    width = max(_LENGTHS)
    ids = torch.zeros(len(_LENGTHS), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(_LENGTHS):
        shift = first if row < len(_LENGTHS) - 1 else 0
        ids[row, :length] = (torch.arange(length) * (2 + row + shift) + 3 + shift) % vocabulary
        mask[row, :length] = 1
    positions = mask.flatten().nonzero().squeeze(1).to(device)
    zeros = torch.zeros(len(positions), device=device)
    return MicroBatch(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        positions=positions,
        targets=positions % vocabulary,
        sampler_log_probs=zeros,
        advantages=zeros,
        sequence_ids=positions // width,
    )
