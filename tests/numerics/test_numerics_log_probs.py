"""Log-probs of tokens and the entropy of their distributions, value and gradient, against verl and OpenRLHF.

Ours are in fp32 whatever the logits are, as on the accelerator: here logits are fp32, and the peers compute in fp64.
"""

from __future__ import annotations

import openrlhf_peer
import pytest
import torch
import verl_peer
from numerics_batches import agree
from torch import Tensor

from rl_trainer.algorithms.token_log_probs import head_token_log_probs, token_log_probs

CASES = [(0, 3, 7), (1, 40, 11), (2, 5, 3000)]


@pytest.fixture(params=CASES, ids=str)
def drawn(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, tokens, and a weight of every token's log-prob."""
    seed, rows, vocabulary = request.param
    generator = torch.Generator().manual_seed(seed)
    logits = 3.0 * torch.randn(rows, vocabulary, generator=generator)
    return (
        logits,
        torch.randint(0, vocabulary, (rows,), generator=generator),
        torch.randn(rows, generator=generator),
    )


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    [result] = torch.autograd.grad(loss, logits)
    return result


def test_log_probs_as_verl(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, tokens, weights = drawn
    mine, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    log_probs, _ = token_log_probs(mine, tokens)
    theirs = verl_peer.log_probs(exact, tokens)
    agree(log_probs, theirs)
    agree(gradient((log_probs * weights).sum(), mine), gradient((theirs * weights.double()).sum(), exact))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_at_a_temperature_as_openrlhf(
    drawn: tuple[Tensor, Tensor, Tensor], temperature: float
) -> None:
    logits, tokens, _ = drawn
    log_probs, _ = token_log_probs(logits, tokens, temperature)
    agree(log_probs, openrlhf_peer.log_probs(logits.double(), tokens, temperature))


def test_entropies_as_verl(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, tokens, weights = drawn
    mine, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    _, entropy = token_log_probs(mine, tokens)
    theirs = verl_peer.entropies(exact)
    agree(entropy, theirs)
    agree(gradient((entropy * weights).sum(), mine), gradient((theirs * weights.double()).sum(), exact))


def test_log_probs_through_the_head_as_verl_from_logits() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden, head = torch.randn(9, 16, generator=generator), torch.randn(50, 16, generator=generator)
    tokens = torch.randint(0, 50, (9,), generator=generator)
    log_probs, entropy = head_token_log_probs(hidden, head, tokens, chunk=4)
    logits = hidden.double() @ head.double().T
    agree(log_probs, verl_peer.log_probs(logits, tokens))
    agree(entropy, verl_peer.entropies(logits))
