"""Sums and means over the sequences of padded and of flat tokens, by hand."""

from __future__ import annotations

import pytest
import torch

from rl_trainer.algorithms.tokens import masked, sequence_means, sequence_sums

# Sequence 2 has three trained tokens, sequence 0 one, and the last, 5, none.
VALUES = torch.tensor([1.0, 2.0, 6.0, 4.0, 0.0])
IDS = torch.tensor([2, 2, 2, 0, 5])
TRAINED = torch.tensor([True, True, True, True, False])


def test_flat_tokens() -> None:
    assert sequence_sums(VALUES, IDS).tolist() == [9.0, 9.0, 9.0, 4.0, 0.0]
    assert sequence_means(VALUES, TRAINED, IDS).tolist() == [3.0, 3.0, 3.0, 4.0, 0.0]
    assert sequence_sums(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_padded_rows() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert sequence_sums(values).tolist() == [[9.0] * 3, [4.0] * 3, [0.0] * 3]
    trained = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    assert sequence_means(values, trained).tolist() == [[3.0] * 3, [4.0] * 3, [0.0] * 3]
    # Rows that hold several sequences: 1 and 2 | 6, 4 with the first row's last.
    ids = torch.tensor([[0, 0, 1], [1, 2, 2], [2, 2, 2]])
    assert sequence_sums(values, ids).tolist() == [[3.0, 3.0, 10.0], [10.0, 0.0, 0.0], [0.0] * 3]


def test_flat_tokens_need_ids() -> None:
    with pytest.raises(ValueError, match="need sequence_ids"):
        sequence_sums(VALUES)


def test_what_is_masked_is_zero_in_the_format_of_the_losses() -> None:
    values = torch.tensor([1.5, float("nan")], dtype=torch.bfloat16)
    kept = masked(values, torch.tensor([True, False]))
    assert (kept.tolist(), kept.dtype) == ([1.5, 0.0], torch.float32)
    assert masked(values.double(), torch.tensor([True, False])).dtype == torch.float64
