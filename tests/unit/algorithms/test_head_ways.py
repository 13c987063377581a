"""Each way to compute log-probs through the head that runs on CPUs, through the one function, against ours."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from rl_trainer.algorithms import head_ways
from rl_trainer.algorithms.head_ways import CANDIDATES, LIGER, TORCH, NoSuchWay, compiled, head_way
from rl_trainer.algorithms.token_log_probs import (
    OURS,
    HeadWay,
    chunk_gradient,
    chunk_values,
    head_token_log_probs,
)

torch.set_num_threads(1)

# The compiler's own tracing and decompositions, without kernels of C++, which take half a minute here.
TRACED = "aot_eager"
WAYS: dict[str, Callable[[], HeadWay]] = {
    "compiled": lambda: compiled(TRACED),
    "torch": lambda: head_way(TORCH),
}


@pytest.fixture(params=WAYS, scope="module")
def way(request: pytest.FixtureRequest) -> HeadWay:
    return WAYS[request.param]()


def drawn(tokens: int = 23, width: int = 16, vocabulary: int = 50) -> tuple[torch.Tensor, ...]:
    """Hidden states, head, targets, and a gradient of each log-prob."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(tokens, width, generator=generator).requires_grad_(),
        (0.3 * torch.randn(vocabulary, width, generator=generator)).requires_grad_(),
        torch.randint(0, vocabulary, (tokens,), generator=generator),
        torch.randn(tokens, generator=generator),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [5, None])
def test_values_and_gradients_are_those_of_ours(way: HeadWay, temperature: float, chunk: int | None) -> None:
    hidden, weight, targets, upstream = drawn()
    found = []
    for one in (OURS, way):
        log_probs, entropy = head_token_log_probs(hidden, weight, targets, temperature, chunk, way=one)
        assert log_probs.dtype == entropy.dtype == torch.float32
        found.append([log_probs, entropy, *torch.autograd.grad(log_probs, [hidden, weight], upstream)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_a_tied_head_gets_both_of_its_gradients(way: HeadWay) -> None:
    """What embeds the tokens is the head, too."""
    _, table, targets, upstream = drawn()
    found = []
    for one in (OURS, way):
        hidden = F.embedding(targets.roll(1), table).tanh()
        log_probs, _ = head_token_log_probs(hidden, table, targets, 0.9, 6, way=one)
        found.extend(torch.autograd.grad(log_probs, table, upstream))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_a_head_that_does_not_learn(way: HeadWay) -> None:
    hidden, weight, targets, upstream = drawn()
    frozen = weight.detach()
    ours, theirs = (
        torch.autograd.grad(
            head_token_log_probs(hidden, frozen, targets, 1.0, 6, way=one)[0], hidden, upstream
        )[0]
        for one in (OURS, way)
    )
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_in_the_type_of_autocast_gradients_are_the_parameters(way: HeadWay) -> None:
    """Torch's kernel rounds log-probs to bfloat16: half a unit in the last place of 4 to 8 is 2^-6."""
    hidden, weight, targets, upstream = drawn()
    found = []
    for one in (OURS, way):
        with torch.autocast("cpu", torch.bfloat16):
            log_probs, _ = head_token_log_probs(hidden, weight, targets, 0.7, 6, way=one)
        gradients = torch.autograd.grad(log_probs, [hidden, weight], upstream)
        assert [gradient.dtype for gradient in gradients] == [torch.float32] * 2
        found.append([log_probs, *gradients])
    assert found[1][0].dtype == torch.float32
    assert float((found[1][0] - found[0][0]).detach().abs().max()) < 0.03
    for ours, theirs in zip(found[0][1:], found[1][1:], strict=True):
        assert float((theirs - ours).abs().max() / ours.abs().max()) < 0.03


def test_no_tokens(way: HeadWay) -> None:
    hidden, weight, targets, _ = drawn(tokens=0)
    log_probs, entropy = head_token_log_probs(hidden, weight, targets, way=way)
    assert log_probs.shape == entropy.shape == (0,)
    gradients = torch.autograd.grad(log_probs.sum(), [hidden, weight])
    assert not any(gradient.any() for gradient in gradients)


def test_a_temperature_of_0_is_refused(way: HeadWay) -> None:
    hidden, weight, targets, _ = drawn()
    with pytest.raises(ValueError, match="temperature"):
        head_token_log_probs(hidden, weight, targets, 0.0, way=way)


def test_an_entropy_that_nobody_wants_costs_a_fused_way_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets, _ = drawn()
    products: list[int] = []
    linear = F.linear

    def counted(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        products.append(len(states))
        return linear(states, head)

    monkeypatch.setattr(F, "linear", counted)
    fused = HeadWay("fused", fused=lambda states, head, targets, rows: (states @ head.T)[:, 0])
    _, unwanted = head_token_log_probs(hidden, weight, targets, 1.0, 6, way=fused, entropy=False)
    assert not products and not unwanted.any()
    _, entropy = head_token_log_probs(hidden, weight, targets, 1.0, 6, way=fused)
    assert products and not entropy.requires_grad
    assert torch.equal(entropy, head_token_log_probs(hidden, weight, targets, 1.0, 6)[1])


@pytest.mark.parametrize("given", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_formulas_that_are_compiled_are_the_plain_ones(given: tuple[bool, bool], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(7, 20, generator=generator)).to(dtype)
    logits[0, 3] = -math.inf  # a token that cannot be sampled
    targets = torch.arange(7) + 4
    found, expected = (one(logits, targets, 0.8) for one in (head_ways._values, chunk_values))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    up = [torch.randn(7, generator=generator) if there else None for there in given]
    gradient = head_ways._gradient(logits, targets, expected[1], up[0], up[1], 0.8)
    assert gradient.dtype == dtype
    plain = chunk_gradient(logits, targets, expected[1], up[0], up[1], 0.8)
    torch.testing.assert_close(
        gradient, plain.to(dtype), atol=1e-5, rtol=1e-2 if dtype != torch.float32 else 1e-5
    )


def test_the_gradient_of_the_entropy_comes_with_compiled_kernels() -> None:
    hidden, weight, targets, upstream = drawn()
    found = []
    for one in (OURS, compiled(TRACED)):
        log_probs, entropy = head_token_log_probs(hidden, weight, targets, 0.9, 6, way=one)
        found.append(torch.autograd.grad([log_probs, entropy], [hidden, weight], [upstream, upstream]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_what_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert head_way(CANDIDATES[0]) is OURS
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoSuchWay, match="liger-kernel is not installed here"):
        head_way(LIGER)
    monkeypatch.delattr(F, "linear_cross_entropy")
    with pytest.raises(NoSuchWay, match="has no linear_cross_entropy in chunks"):
        head_way(TORCH)


@pytest.mark.parametrize("several", [False, True])
def test_liger_is_asked_for_losses_token_by_token(monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    """The package needs a GPU: here is what it is called with, and what becomes of its answer, alone or with others."""

    def loss(states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, reduction: str) -> object:
        value = F.cross_entropy(states @ head.T, targets, reduction=reduction)
        return (value, None) if several else value

    transformers, functional = ModuleType("liger_kernel.transformers"), ModuleType("functional")
    functional.liger_fused_linear_cross_entropy = loss  # type: ignore[attr-defined]
    transformers.functional = functional  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", transformers)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    hidden, weight, targets, _ = drawn()
    found, expected = (
        head_token_log_probs(hidden, weight, targets, 0.7, 6, way=one) for one in (head_way(LIGER), OURS)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_autocast_is_off_within_kernels() -> None:
    seen = []

    def fused(states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, rows: int) -> torch.Tensor:
        seen.append((states.dtype, head.dtype, torch.is_autocast_enabled("cpu"), rows))
        return states.sum(1)

    hidden, weight, targets, _ = drawn()
    for context in (torch.autocast("cpu", torch.bfloat16), nullcontext()):
        with context:
            head_token_log_probs(
                hidden, weight, targets, 0.7, 6, way=HeadWay("seen", fused=fused), entropy=False
            )
    assert seen == [(torch.bfloat16,) * 2 + (False, 6), (torch.float32,) * 2 + (False, 6)]
