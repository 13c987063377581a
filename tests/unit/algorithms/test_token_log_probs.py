"""Log-probs and entropy against torch's own log_softmax in double precision, values and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_trainer.algorithms.token_log_probs import head_token_log_probs, token_log_probs

torch.set_num_threads(1)


def exact(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = torch.log_softmax(logits.double() / temperature, -1)
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


def test_by_hand() -> None:
    """Logits ln 1, ln 3: p = 1/4, 3/4; H = (ln 4)/4 + 3/4 ln(4/3). At temperature 0.5 squares: 1/10, 9/10."""
    logits = torch.tensor([[0.0, math.log(3.0)]] * 2)
    log_probs, entropy = token_log_probs(logits, torch.tensor([0, 1]))
    assert log_probs.exp().tolist() == pytest.approx([0.25, 0.75])
    assert entropy.tolist() == pytest.approx([math.log(4) / 4 + 0.75 * math.log(4 / 3)] * 2)
    cold, _ = token_log_probs(logits, torch.tensor([0, 1]), temperature=0.5)
    assert cold.exp().tolist() == pytest.approx([0.1, 0.9])


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 9),
    vocabulary=st.integers(1, 12),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    chunk=st.sampled_from([None, 1, 2, 4, 100]),
    seed=st.integers(0, 100),
)
def test_values_and_gradients_whatever_the_chunk(
    rows: int, vocabulary: int, temperature: float, chunk: int | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(rows, vocabulary, generator=generator)).requires_grad_()
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    factors = torch.randn(2, rows, generator=generator)
    results = token_log_probs(logits, targets, temperature, chunk)
    expected = exact(logits, targets, temperature)
    for result, truth in zip(results, expected, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), truth, atol=1e-5, rtol=1e-5)
    for used in ([0], [1], [0, 1]):  # each gradient alone and both
        ours = sum((factors[i] * results[i]).sum() for i in used)
        theirs = sum((factors[i] * expected[i]).sum() for i in used)
        (gradient,) = torch.autograd.grad(ours, logits, retain_graph=True)
        (truth,) = torch.autograd.grad(theirs, logits, retain_graph=True)
        torch.testing.assert_close(gradient, truth, atol=1e-5, rtol=1e-4)


def test_shapes_with_a_batch_dimension() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 1, 2], [3, 4, 0]])
    log_probs, entropy = token_log_probs(logits, targets)
    assert log_probs.shape == entropy.shape == (2, 3)
    torch.testing.assert_close(log_probs.double(), exact(logits, targets, 1.0)[0], atol=1e-6, rtol=1e-6)


def test_half_precision_logits_are_converted_before_the_softmax() -> None:
    logits = (8 * torch.randn(50, 200, generator=torch.Generator().manual_seed(2))).bfloat16()
    targets = torch.randint(0, 200, (50,), generator=torch.Generator().manual_seed(3))
    leaf = logits.clone().requires_grad_()
    log_probs, _ = token_log_probs(leaf, targets, 0.7)
    torch.testing.assert_close(log_probs.double(), exact(logits, targets, 0.7)[0], atol=1e-5, rtol=1e-5)
    log_probs.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.bfloat16


def test_tokens_that_cannot_be_sampled() -> None:
    """-inf logits (masked tokens) have probability 0, add nothing to the entropy and get no gradient."""
    logits = torch.tensor([[0.0, -math.inf, math.log(3.0)]], requires_grad=True)
    log_probs, entropy = token_log_probs(logits, torch.tensor([2]))
    (log_probs + entropy).sum().backward()
    assert log_probs.exp().item() == pytest.approx(0.75)
    assert entropy.item() == pytest.approx(math.log(4) / 4 + 0.75 * math.log(4 / 3))
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 1].item() == 0.0


def test_second_derivatives_are_refused() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    log_probs, _ = token_log_probs(logits, torch.tensor([0, 1, 2, 3]))
    (gradient,) = torch.autograd.grad(log_probs.square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("rows", "vocabulary", "chunks"), [(5, 2**15, [2, 2, 1]), (2, 2**17, [1, 1]), (9, 4, [9])]
)
def test_a_chunk_is_256_kib_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, rows: int, vocabulary: int, chunks: list[int]
) -> None:
    taken: list[int] = []
    softmax = torch.log_softmax

    def log_softmax(values: torch.Tensor, dim: int) -> torch.Tensor:
        taken.append(len(values))
        return softmax(values, dim)

    monkeypatch.setattr(torch, "log_softmax", log_softmax)
    token_log_probs(torch.zeros(rows, vocabulary), torch.zeros(rows, dtype=torch.long))
    assert taken == chunks


class Unused(torch.autograd.Function):
    """A result that has no gradient, although its input wants one."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


def test_where_nobody_asks_for_a_gradient_there_is_none() -> None:
    logits, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    targets = torch.tensor([0, 1, 2])
    for log_probs, _ in (
        token_log_probs(logits, targets),
        head_token_log_probs(logits, weight, targets, chunk=2),
    ):
        Unused.apply(log_probs).sum().backward()  # type: ignore[no-untyped-call]
    assert (logits.grad, weight.grad) == (None, None)


@pytest.mark.parametrize("chunk", [None, 3])
def test_through_the_head(chunk: int | None) -> None:
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(7, 6, generator=generator, requires_grad=True)
    weight = torch.randn(11, 6, generator=generator, requires_grad=True)
    targets = torch.randint(0, 11, (7,), generator=generator)
    results = head_token_log_probs(hidden, weight, targets, 0.8, chunk)
    expected = exact(hidden @ weight.T, targets, 0.8)
    for result, truth in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), truth, atol=1e-5, rtol=1e-5)
    for factors in ((1.0, 0.0), (0.0, 1.0), (1.0, 2.0)):
        ours = sum(factor * result.sum() for factor, result in zip(factors, results, strict=True) if factor)
        theirs = sum(factor * truth.sum() for factor, truth in zip(factors, expected, strict=True))
        for gradient, truth in zip(
            torch.autograd.grad(ours, [hidden, weight], retain_graph=True),
            torch.autograd.grad(theirs, [hidden, weight], retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(gradient, truth, atol=1e-5, rtol=1e-5)


def test_through_a_head_that_is_not_trained() -> None:
    hidden = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight, targets = torch.eye(4), torch.tensor([0, 1, 2, 3, 0])
    head_token_log_probs(hidden, weight, targets, chunk=2)[0].sum().backward()
    expected = torch.autograd.grad(exact(hidden, targets, 1.0)[0].sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected, atol=1e-5, rtol=1e-5)
    assert weight.grad is None


def test_through_the_head_in_the_type_of_autocast() -> None:
    """Products in bfloat16, softmax in fp32, gradients in the parameters' fp32: chunked or not, the same numbers."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(8, 16, generator=generator, requires_grad=True)
    weight = torch.randn(32, 16, generator=generator, requires_grad=True)
    targets = torch.randint(0, 32, (8,), generator=generator)
    found = []
    for chunk in (None, 4):
        with torch.autocast("cpu", torch.bfloat16):
            results = head_token_log_probs(hidden, weight, targets, 1.0, chunk)
        gradients = torch.autograd.grad(results[0].sum() + results[1].sum(), [hidden, weight])
        assert [gradient.dtype for gradient in gradients] == [torch.float32] * 2
        found.append([*results, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)
    assert torch.equal(found[0][0], found[1][0])
    logits = (hidden.bfloat16() @ weight.bfloat16().T).detach()
    torch.testing.assert_close(found[1][0].double(), exact(logits, targets, 1.0)[0], atol=1e-5, rtol=1e-5)


def test_bad_arguments_are_named() -> None:
    logits = torch.zeros(2, 3)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="temperature"):
            token_log_probs(logits, torch.tensor([0, 1]), temperature)
    with pytest.raises(ValueError, match="do not fit"):
        token_log_probs(logits, torch.tensor([0]))
    with pytest.raises(ValueError, match="must be"):
        head_token_log_probs(logits, torch.zeros(4, 3), torch.tensor([0]))
