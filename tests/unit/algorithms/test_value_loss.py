"""The critic's clipped loss by hand."""

from __future__ import annotations

import pytest
import torch

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_loss import clipped_value_loss


@pytest.mark.parametrize(
    ("value", "loss", "gradient", "clipped"),
    [
        # V_old = 1, R = 2, clip 0.5: 1/2 max((V - 2)^2, (clamp(V, 0.5, 1.5) - 2)^2)
        (1.0, 0.5, -1.0, 0),
        (1.4, 0.18, -0.6, 0),
        (1.8, 0.125, 0.0, 1),  # past the range: (1.5 - 2)^2 is larger, and has no gradient
        (0.0, 2.0, -2.0, 0),  # away from the target, outside the range: its own error is larger
        (2.0, 0.125, 0.0, 1),
    ],
)
def test_one_token(value: float, loss: float, gradient: float, clipped: int) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    old, returns = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 2.0))
    output = clipped_value_loss(values, old, returns, torch.ones(1), LossDenominators(1, 1), clip=0.5)
    (slope,) = torch.autograd.grad(output.loss, values)
    assert output.loss.item() == pytest.approx(loss)
    assert slope.item() == pytest.approx(gradient)
    assert output.clipped_tokens.item() == clipped


def test_a_value_may_move_by_a_fifth_unless_told_otherwise() -> None:
    """V_old = 1, R = 2, V = 1.8: limited to 1.2, 1/2 * 0.8^2."""
    values, old, returns = (torch.tensor([x], dtype=torch.float64) for x in (1.8, 1.0, 2.0))
    output = clipped_value_loss(values, old, returns, torch.ones(1), LossDenominators(1, 1))
    assert output.loss.item() == pytest.approx(0.32)


def test_without_clip_masks_and_aggregation() -> None:
    """Errors 1, 2 | 3 (and a masked NaN): squares 1, 4 | 9; token mean 14 / 6, sequence mean (2.5 + 9) / 4."""
    values = torch.tensor([[1.0, 2.0], [3.0, float("nan")]], requires_grad=True)
    zero, mask = torch.zeros(2, 2), torch.tensor([[1, 1], [1, 0]])
    counts = LossDenominators.from_lengths([2, 1])
    output = clipped_value_loss(values, zero, zero, mask, counts, clip=None)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(14 / 6)
    assert output.clipped_tokens.item() == 0
    assert values.grad is not None
    assert values.grad.flatten().tolist() == pytest.approx([1 / 3, 2 / 3, 1.0, 0.0])
    by_sequence = clipped_value_loss(values, zero, zero, mask, counts, clip=None, aggregation="sequenceMean")
    assert by_sequence.loss.item() == pytest.approx(11.5 / 4)
