from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_trainer.rollout.engines.sampling import (
    BatchSampling,
    choose,
    distribution,
    most_probable,
    sample,
    uniforms,
)

CPU = torch.device("cpu")


def batch(temperature=(1.0,), top_k=(0,), top_p=(1.0,), vocab=8):
    n = max(len(temperature), len(top_k), len(top_p))

    def full(values, dtype):
        return np.array(values * n if len(values) == 1 else values, dtype)

    return BatchSampling.of(
        full(temperature, np.float32), full(top_k, np.int64), full(top_p, np.float32), vocab, CPU
    )


def splitmix64(seed: int, position: int) -> float:
    """The same in Python's whole numbers."""
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    state = (mix((seed + 0x9E3779B97F4A7C15) & mask) + (position + 1) * 0x9E3779B97F4A7C15) & mask
    return (mix(state) >> 40) * 2.0**-24


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31)), min_size=1, max_size=20))
def test_uniforms_are_a_pure_function_of_seed_and_position(keys):
    seeds, positions = np.array([k[0] for k in keys], np.uint64), np.array([k[1] for k in keys], np.int64)
    found = uniforms(seeds, positions)
    assert found.dtype == np.float32
    assert found.tolist() == [splitmix64(*key) for key in keys]
    assert ((found >= 0) & (found < 1)).all()


def test_uniforms_look_uniform_along_both_axes():
    seeds, positions = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300))
    values = uniforms(seeds.reshape(-1), positions.reshape(-1)).reshape(300, 300)
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    # Chi-squared with 19 degrees of freedom: 43.8 is its 99.9th percentile.
    assert ((counts - 4500) ** 2 / 4500).sum() < 43.8
    for axis in (0, 1):  # neighbours do not move together
        first, second = np.take(values, range(299), axis), np.take(values, range(1, 300), axis)
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.015


def test_nothing_to_treat_is_none():
    assert batch() == BatchSampling()
    assert batch(top_k=(8,)).top_k is None
    assert batch(top_k=(99,)).top_k is None


def test_temperature_divides_the_logits():
    logits = torch.randn(3, 8)
    found = distribution(logits, batch(temperature=(0.5, 1.0, 2.0)))
    expected = torch.softmax(logits / torch.tensor([[0.5], [1.0], [2.0]]), -1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (4, 0.7), (1, 1.0), (0, 1e-6), (5, 0.999)])
def test_cuts_equal_the_library(top_k, top_p):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(top_k))
    expected = TemperatureLogitsWarper(0.8)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = distribution(logits, batch((0.8,) * 20, (top_k,), (top_p,), vocab=30))
    torch.testing.assert_close(found, torch.softmax(expected, -1))
    assert torch.equal(found == 0, expected.isinf())


def test_rows_are_cut_each_by_its_own_parameters():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).repeat(4, 1)
    found = distribution(logits, batch((1.0, 1.0, 1.0, 0.0), (0, 2, 0, 1), (1.0, 1.0, 0.5, 0.1), vocab=4))
    assert (found > 0).sum(dim=1).tolist() == [4, 2, 1, 4]  # the greedy row keeps the plain softmax
    torch.testing.assert_close(found.sum(1), torch.ones(4))


def test_choice_inverts_the_distribution_function():
    probabilities = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).repeat(6, 1)
    uniform = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.75, 1 - 2.0**-24])
    assert choose(probabilities, uniform).tolist() == [0, 0, 2, 2, 3, 3]


@given(st.integers(0, 2**32), st.integers(2, 400))
def test_a_token_of_probability_zero_is_never_chosen(seed, vocab):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(8, vocab, generator=generator) * (torch.rand(8, vocab, generator=generator) < 0.3)
    weights[:, 0] += 1e-6
    probabilities = weights / weights.sum(1, keepdim=True)
    for uniform in (torch.zeros(8), torch.full((8,), 1 - 2.0**-24), torch.rand(8, generator=generator)):
        chosen = choose(probabilities, uniform)
        assert (probabilities.gather(1, chosen[:, None]) > 0).all()


def test_samples_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(40_000, 1)
    uniform = torch.from_numpy(uniforms(np.arange(40_000, dtype=np.uint64), np.zeros(40_000, np.int64)))
    tokens, logprobs = sample(logits, uniform, batch((0.7,) * 40_000, vocab=4))
    expected = torch.softmax(logits[0] / 0.7, -1)
    counts = torch.bincount(tokens, minlength=4)
    # Chi-squared with 3 degrees of freedom: 16.3 is its 99.9th percentile.
    assert ((counts - 40_000 * expected) ** 2 / (40_000 * expected)).sum() < 16.3
    torch.testing.assert_close(logprobs, expected.log()[tokens])


def test_tokens_are_drawn_after_the_cuts_and_measured_among_all():
    logits = torch.randn(50, 12)
    sampling = batch((0.9,) * 50, (5,), (0.8,), vocab=12)
    tokens, logprobs = sample(logits, torch.rand(50), sampling)
    kept = distribution(logits, sampling)
    assert (kept.gather(1, tokens[:, None]) > 0).all()
    assert (kept > 0).sum(1).max() <= 5
    assert logprobs.dtype == torch.float32
    plain = torch.log_softmax(logits / 0.9, -1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, plain)


def test_the_most_probable_tokens_are_measured_among_all():
    logits = torch.randn(6, 12)
    sampling = batch((0.0, 0.7) * 3, (5,), (0.8,), vocab=12)
    found = most_probable(logits, sampling, [3, 0, 12, 20, 1, 0])
    assert [len(row) for row in found] == [3, 0, 12, 12, 1, 0]
    for row, top in enumerate(found):
        plain = torch.log_softmax(logits[row] / (1.0 if row % 2 == 0 else 0.7), -1)
        wanted = plain.topk(len(top))
        assert [token for token, _ in top] == wanted.indices.tolist()
        torch.testing.assert_close(torch.tensor([value for _, value in top]), wanted.values)


def test_greedy_rows_take_the_largest_and_report_the_plain_softmax():
    logits = torch.randn(10, 12)
    greedy_and_not = batch((0.0, 1.0) * 5, (3,), vocab=12)
    tokens, logprobs = sample(logits, torch.rand(10), greedy_and_not)
    assert torch.equal(tokens[::2], logits[::2].argmax(-1))
    plain = torch.log_softmax(logits, -1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, plain)
    kept = distribution(logits, greedy_and_not).gather(1, tokens[:, None])[:, 0]
    assert (kept[1::2] > plain[1::2].exp()).all()


def test_half_precision_logits_are_treated_in_float32():
    logits = torch.randn(4, 12).bfloat16()
    _, logprobs = sample(logits, torch.rand(4), BatchSampling())
    assert logprobs.dtype == torch.float32
    assert distribution(logits, BatchSampling()).sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-6)


def test_rows_of_nan_give_a_token_and_a_log_probability_that_tells():
    logits = torch.full((1, 6), torch.nan)
    tokens, logprobs = sample(logits, torch.tensor([0.5]), BatchSampling())
    assert 0 <= tokens.item() < 6
    assert torch.isnan(logprobs).all()
