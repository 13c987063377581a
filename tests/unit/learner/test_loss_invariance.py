"""The same batch cut, dealt out, packed, padded or ordered in another way has the same loss and gradient, to 1e-6.

For every objective, aggregation and level of importance weights, in float64.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.importance import ImportanceConfig
from rl_trainer.algorithms.loss_metrics import empty_metrics, merge_metrics
from rl_trainer.algorithms.losses import Aggregation, PolicyLossConfig, policy_loss
from rl_trainer.algorithms.policy_losses import Objective
from rl_trainer.algorithms.value_loss import clipped_value_loss
from rl_trainer.learner.packing import micro_batches, split_over_ranks

LONGEST = 6
POSITIONS = torch.arange(LONGEST)
Result = tuple[Tensor, Tensor, dict[str, float]]


@dataclass
class Batch:
    """Sequences of `lengths` tokens, padded to [count, LONGEST]; NaN in the padding."""

    lengths: list[int]
    seed: int
    config: PolicyLossConfig

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        count = len(self.lengths)
        self.mask = torch.tensor(self.lengths).unsqueeze(1) > POSITIONS
        self.log_probs = -torch.rand(count, LONGEST, generator=generator, dtype=torch.float64) - 0.1
        shifts = torch.randn(4, count, LONGEST, generator=generator, dtype=torch.float64) * 0.3
        self.tensors: dict[str, Tensor] = {
            "old_log_probs": self.log_probs + shifts[0],
            "sampler_log_probs": self.log_probs + shifts[0] + 0.2 * shifts[1],
            "reference_log_probs": self.log_probs + shifts[2],
            "entropy": shifts[3].abs(),
            "staleness": torch.randint(0, 4, (count, LONGEST), generator=generator),
        }
        self.advantages = torch.randn(count, generator=generator, dtype=torch.float64)
        self.counts = LossDenominators.from_lengths(self.lengths, constant_length=LONGEST)

    def part(self, rows: list[int], *, padding: int = 0, flat: bool = False, ids: bool = False) -> Result:
        """Loss, gradient scattered to [count, LONGEST], metrics of these sequences as one micro-batch."""
        leaf = self.log_probs.clone().requires_grad_()
        mask = self.mask[rows]
        parts = {name: values[rows] for name, values in self.tensors.items()}
        parts["log_probs"], parts["advantages"] = (
            leaf[rows],
            self.advantages[rows].unsqueeze(1).expand(-1, LONGEST),
        )
        sequence_ids = torch.arange(len(rows)).unsqueeze(1).expand(-1, LONGEST)
        if flat:
            sequence_ids = sequence_ids[mask]
            parts = {name: values[mask] for name, values in parts.items()}
            mask = torch.ones(len(sequence_ids))
        elif padding:
            fill = {name: 0 if name == "staleness" else float("nan") for name in parts}
            parts = {
                name: torch.nn.functional.pad(
                    torch.where(mask, values, fill[name]), (0, padding), value=fill[name]
                )
                for name, values in parts.items()
            }
            mask = torch.nn.functional.pad(mask, (0, padding))
            sequence_ids = torch.nn.functional.pad(sequence_ids, (0, padding))
        output = policy_loss(
            denominators=self.counts,
            config=self.config,
            mask=mask,
            sequence_ids=sequence_ids if flat or ids else None,
            **parts,
        )
        (gradient,) = torch.autograd.grad(output.loss, leaf)
        return output.loss.detach(), gradient, {name: float(value) for name, value in output.metrics.items()}

    def assert_same(self, results: list[Result]) -> None:
        """That the parts' results add up to the result of the whole batch."""
        loss, gradient, metrics = self.part(list(range(len(self.lengths))))
        nothing = {name: float(value) for name, value in empty_metrics().items()}
        tolerance = {"atol": 1e-6, "rtol": 1e-6}
        torch.testing.assert_close(torch.stack([part[0] for part in results]).sum(), loss, **tolerance)
        torch.testing.assert_close(torch.stack([part[1] for part in results]).sum(0), gradient, **tolerance)
        merged = merge_metrics([nothing, *(part[2] for part in results)])
        assert merged == pytest.approx(metrics, rel=1e-6, abs=1e-6)


def own_objective(inputs: Any) -> Tensor:
    return -inputs.advantages * inputs.log_probs.tanh()


configs = st.builds(
    PolicyLossConfig,
    objective=st.sampled_from(get_args(Objective)),
    user_objective=st.sampled_from([None, None, None, own_objective]),
    aggregation=st.sampled_from(get_args(Aggregation)),
    dual_clip=st.sampled_from([None, 1.5]),
    kl_coefficient=st.sampled_from([0.0, 0.1]),
    kl_estimator=st.sampled_from(["k1", "k2", "k3"]),
    entropy_coefficient=st.sampled_from([0.0, 0.05]),
    importance=st.builds(
        ImportanceConfig,
        kind=st.sampled_from(["truncate", "mask", "none"]),
        level=st.sampled_from(["token", "sequence", "geometric"]),
        low=st.sampled_from([None, 0.8]),
        high=st.sampled_from([1.1, 2.0]),
    ),
    proximal=st.sampled_from(["recomputed", "interpolated"]),
)
batches = st.builds(
    Batch,
    lengths=st.lists(st.integers(0, LONGEST), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    config=configs,
)


@settings(max_examples=100, deadline=None)
@given(batch=batches, data=st.data())
def test_micro_batches_in_any_order(batch: Batch, data: st.DataObject) -> None:
    count = len(batch.lengths)
    order = data.draw(st.permutations(range(count)))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=3)))
    pieces = [order[a:b] for a, b in itertools.pairwise([0, *cuts, count]) if a < b]
    batch.assert_same([batch.part(list(piece)) for piece in pieces])


@settings(max_examples=60, deadline=None)
@given(batch=batches, ranks=st.integers(1, 3), budget=st.integers(1, 20))
def test_ranks_and_their_micro_batches(batch: Batch, ranks: int, budget: int) -> None:
    """As the learners do it: tokens dealt out over 1, 2 or 3 ranks, each cut by a token budget; some ranks get nothing."""
    lengths = [max(1, length) for length in batch.lengths]
    results = []
    for rows in split_over_ranks(lengths, ranks):
        for cut in micro_batches([lengths[row] for row in rows], budget) if rows else []:
            results.append(batch.part([rows[index] for index in cut]))
    batch.assert_same(results)


@settings(max_examples=60, deadline=None)
@given(batch=batches, padding=st.integers(1, 4))
def test_padding_and_packing(batch: Batch, padding: int) -> None:
    rows = list(range(len(batch.lengths)))
    batch.assert_same([batch.part(rows, padding=padding)])
    batch.assert_same([batch.part(rows, flat=True)])
    batch.assert_same([batch.part(rows, ids=True)])


@settings(max_examples=40, deadline=None)
@given(batch=batches)
def test_several_sequences_in_one_row(batch: Batch) -> None:
    """Packed rows: [1, T] with ids is what [B, T] is."""
    loss, gradient, _ = batch.part(list(range(len(batch.lengths))))
    count = len(batch.lengths)
    ids = torch.arange(count).unsqueeze(1).expand(-1, LONGEST).reshape(1, -1)
    leaf = batch.log_probs.clone().requires_grad_()
    output = policy_loss(
        leaf.reshape(1, -1),
        batch.advantages.unsqueeze(1).expand(-1, LONGEST).reshape(1, -1),
        batch.mask.reshape(1, -1),
        batch.counts,
        batch.config,
        sequence_ids=ids,
        **{name: values.reshape(1, -1) for name, values in batch.tensors.items()},
    )
    torch.testing.assert_close(output.loss.detach(), loss, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(output.loss, leaf)[0], gradient, atol=1e-6, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, LONGEST), min_size=1, max_size=6),
    aggregation=st.sampled_from(get_args(Aggregation)),
    seed=st.integers(0, 1000),
)
def test_the_critics_loss(lengths: list[int], aggregation: Aggregation, seed: int) -> None:
    """One sequence at a time, flat, or all together."""
    generator = torch.Generator().manual_seed(seed)
    values, old, returns = torch.randn(3, len(lengths), LONGEST, generator=generator, dtype=torch.float64)
    mask = torch.tensor(lengths).unsqueeze(1) > POSITIONS
    counts = LossDenominators.from_lengths(lengths, constant_length=LONGEST)
    whole = clipped_value_loss(values, old, returns, mask, counts, aggregation=aggregation)
    parts = [
        clipped_value_loss(values[[i]], old[[i]], returns[[i]], mask[[i]], counts, aggregation=aggregation)
        for i in range(len(lengths))
    ]
    ids = torch.arange(len(lengths)).unsqueeze(1).expand(-1, LONGEST)[mask]
    flat = clipped_value_loss(
        values[mask],
        old[mask],
        returns[mask],
        torch.ones(len(ids)),
        counts,
        aggregation=aggregation,
        sequence_ids=ids,
    )
    for other in (torch.stack([part.loss for part in parts]).sum(), flat.loss):
        torch.testing.assert_close(other, whole.loss, atol=1e-9, rtol=1e-9)
    assert sum(part.clipped_tokens.item() for part in parts) == whole.clipped_tokens.item()


def test_float32_log_probs_are_computed_in_float32_and_float64_in_float64() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        log_probs = torch.tensor([-1.0, -2.0], dtype=dtype)
        config = PolicyLossConfig(importance=ImportanceConfig(kind="none"))
        loss = policy_loss(log_probs, torch.ones(2), torch.ones(2), LossDenominators(2, 1), config).loss
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
