"""KL estimators as losses: values and gradients by hand, against verl's numbers, and in expectation."""

from __future__ import annotations

import math

import pytest
import torch

from rl_trainer.algorithms.losses import kl_penalty
from rl_trainer.algorithms.reward_shaping import KlEstimator


@pytest.mark.parametrize(
    ("estimator", "values", "gradients"),
    [
        # d = l_ref - l = -0.1, -0.3, 0.1, 1.0; values and plain gradients of verl b178a3cd `kl_penalty`.
        ("k1", [0.1, 0.3, -0.1, -1.0], [1.0, 1.0, 1.0, 1.0]),
        ("k2", [0.005, 0.045, 0.005, 0.5], [0.1, 0.3, -0.1, -1.0]),
        (
            "k3",
            [0.00483739, 0.04081821, 0.00517094, 0.71828175],
            [0.09516263, 0.25918174, -0.10517097, -1.71828175],
        ),
    ],
)
def test_kl_estimators(estimator: KlEstimator, values: list[float], gradients: list[float]) -> None:
    reference = torch.tensor([-0.6, -1.5, -0.2, -1.0])
    plain = torch.tensor([-0.5, -1.2, -0.3, -2.0], requires_grad=True)
    through = plain.detach().clone().requires_grad_()
    value = kl_penalty(plain, reference, estimator, straight_through=False)
    bound = kl_penalty(through, reference, estimator)
    value.sum().backward()
    bound.sum().backward()
    assert value.tolist() == pytest.approx(values, abs=1e-6)
    assert bound.tolist() == pytest.approx(values, abs=1e-6)
    assert plain.grad is not None
    assert through.grad is not None
    assert plain.grad.tolist() == pytest.approx(gradients, abs=1e-6)
    assert through.grad.tolist() == pytest.approx([0.1, 0.3, -0.1, -1.0], abs=1e-6)  # -d, k2's, for all three


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_expected_gradient_is_that_of_the_kl_divergence(estimator: KlEstimator) -> None:
    """Summed exactly over a small vocabulary: straight through, all have the gradient of KL(pi || ref)."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), 0)
    log_p = torch.log_softmax(logits, 0)
    (exact,) = torch.autograd.grad((log_p.exp() * (log_p - reference)).sum(), logits, retain_graph=True)
    (other_way,) = torch.autograd.grad(
        (reference.exp() * (reference - log_p)).sum(), logits, retain_graph=True
    )
    sampling = log_p.exp().detach()

    def expected(straight_through: bool) -> torch.Tensor:
        estimate = kl_penalty(log_p, reference, estimator, straight_through)
        return torch.autograd.grad((sampling * estimate).sum(), logits, retain_graph=True)[0]

    torch.testing.assert_close(expected(True), exact)
    # What the docstring says of the plain gradients.
    plain = {"k1": torch.zeros_like(exact), "k2": exact, "k3": other_way}[estimator]
    torch.testing.assert_close(expected(False), plain)


def test_k3_far_from_the_reference() -> None:
    log_probs = torch.tensor([-100.0, 0.0], requires_grad=True)
    kl = kl_penalty(log_probs, torch.tensor([0.0, -100.0]), "k3", straight_through=False)
    kl.sum().backward()
    assert kl.tolist() == pytest.approx([math.exp(20.0) - 21.0, 99.0], rel=1e-5)
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([0.0, 1.0])
