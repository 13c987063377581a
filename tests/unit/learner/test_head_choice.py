"""Which way of log-probs is chosen, and that learners learn the same by each: forced on CPUs, where nothing is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from divided_learners import Case, divided, run

from rl_trainer.algorithms.head_ways import TORCH, NoSuchWay, compiled, head_way
from rl_trainer.algorithms.token_log_probs import OURS, HeadWay
from rl_trainer.flow.worker import Worker
from rl_trainer.learner import head_choice, rank
from rl_trainer.learner.actor import LearnerActor
from rl_trainer.learner.head_choice import (
    MORE_MEMORY,
    HeadChoice,
    HeadChooser,
    HeadShape,
    Tried,
    choose,
    fastest,
    objection,
    trials,
)
from rl_trainer.learner.policy import Policy
from rl_trainer.learner.rank import Learner

CPU = torch.device("cpu")
SHAPE = HeadShape(50, 16, 23, 0.7, torch.float32, learns=True, entropy_learns=False)
TRIED = Tried(1.0, 10**9, 0.0, 0.0)
LORA = {"lora": {"rank": 3, "targetModules": ["q_proj", "o_proj"]}}
KL = {"kl": {"coefficient": 0.05}, "miniBatches": 2}


# -- the decision --------------------------------------------------------------------------------------------------


def test_the_fastest_wins_if_it_is_clearly_faster_than_ours() -> None:
    assert fastest({"ours": 3.0, "a": 2.0, "b": 2.5}) == "a"
    assert fastest({"ours": 2.0, "a": 1.99}) == "ours"
    assert fastest({"ours": math.inf, "a": 1.0, "b": 1.0}) == "a"
    assert fastest({"ours": 2.0, "a": math.inf}) == "ours"
    assert fastest({"ours": math.inf, "a": math.inf}) == "ours"


@pytest.mark.parametrize(
    ("dtype", "changes", "why"),
    [
        (torch.float32, {}, ""),
        (torch.float32, {"values": 9e-5, "gradients": 9e-5}, ""),
        (torch.float32, {"values": 2e-4}, "log-probs or entropies differ by 2.0e-04, allowed: 0.0001"),
        (torch.bfloat16, {"values": 0.04, "gradients": 0.02}, ""),
        (torch.bfloat16, {"values": 0.16}, "log-probs or entropies differ by 1.6e-01, allowed: 0.15"),
        (torch.bfloat16, {"gradients": 0.04}, "gradients differ by 4.0e-02, allowed: 0.03"),
        (torch.bfloat16, {"values": math.nan}, "log-probs or entropies differ by nan, allowed: 0.15"),
        (torch.bfloat16, {"gradients": math.nan}, "gradients differ by nan, allowed: 0.03"),
        (torch.bfloat16, {"memory": 10**9 + MORE_MEMORY}, ""),
        (torch.bfloat16, {"memory": 10**9 + 2 * MORE_MEMORY}, "128 MiB more than ours, allowed: 64"),
        (torch.bfloat16, {"memory": 0}, ""),
    ],
)
def test_who_may_take_the_place_of_ours(dtype: torch.dtype, changes: dict[str, Any], why: str) -> None:
    assert objection(replace(TRIED, **changes), TRIED, dtype) == why


# -- trials --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "learns"), [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True)]
)
def test_torch_s_way_is_tried_and_agrees(dtype: torch.dtype, learns: bool) -> None:
    state = torch.get_rng_state()
    ways, found, left_out = trials(
        replace(SHAPE, dtype=dtype, learns=learns), CPU, (OURS.name, TORCH, "liger")
    )
    assert torch.equal(torch.get_rng_state(), state), "random numbers of the run are its own"
    assert left_out == {"liger": "liger-kernel is not installed here"}
    assert found[OURS.name].values == found[OURS.name].gradients == 0.0
    assert all(one.seconds > 0.0 for one in found.values())
    assert ways[TORCH].name == TORCH


def ways_by(made: dict[str, HeadWay | Exception]) -> Callable[[str], HeadWay]:
    def way(name: str) -> HeadWay:
        if isinstance(found := made[name], Exception):
            raise found
        return found

    return way


def wrong(states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, rows: int) -> torch.Tensor:
    return 1.01 * head_way(TORCH).fused(states, head, targets, rows)  # type: ignore[misc]


def undefined(states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, rows: int) -> torch.Tensor:
    return wrong(states, head, targets, rows) * torch.tensor([math.nan] + [1.0] * (len(targets) - 1))


class _HeadIsUndefined(torch.autograd.Function):
    """Everything is right but the head's gradient."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return states.clone(), head.clone()

    @staticmethod
    def backward(ctx: Any, states: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return states, head * math.nan


def without_head(states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, rows: int) -> torch.Tensor:
    return head_way(TORCH).fused(*_HeadIsUndefined.apply(states, head), targets, rows)  # type: ignore[misc, no-untyped-call]


def targets_alone(states: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, rows: int) -> torch.Tensor:
    """Right values; of the gradient the part of the targets, which is most of it where logits are small."""
    logits = states @ head.T
    return (states * head[targets]).sum(1) - logits.logsumexp(1).detach()


def broken(*_: Any) -> torch.Tensor:
    raise RuntimeError("no kernel image\nfor this device")


def test_what_fails_is_not_there_or_finds_something_else_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, HeadWay | Exception] = {
        "wrong": HeadWay("wrong", fused=wrong),
        "undefined": HeadWay("undefined", fused=undefined),
        "without head": HeadWay("without head", fused=without_head),
        "targets alone": HeadWay("targets alone", fused=targets_alone),
        "broken": HeadWay("broken", fused=broken),
        "absent": NoSuchWay("is not installed here"),
        "uncompiled": AssertionError(),
    }
    monkeypatch.setattr(head_choice, "head_way", ways_by(made))
    choice = choose(SHAPE, CPU, names=(OURS.name, *made))
    assert choice.way is OURS
    assert choice.shape == SHAPE
    assert choice.line.startswith("log-probs of 23 tokens through the output head: ours (ours ")
    assert "\n" not in choice.line
    for part in (
        "wrong: log-probs or entropies differ by ",
        "undefined: log-probs or entropies differ by nan",
        "without head: gradients differ by nan",
        "targets alone: gradients differ by ",
        "broken: RuntimeError: no kernel image; ",
        "absent: is not installed here; ",
        "uncompiled: AssertionError: AssertionError)",
    ):
        assert part in choice.line


def test_half_a_gradient_is_none_in_half_precision_either(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = HeadShape(1500, 1024, 40, 0.7, torch.bfloat16, learns=True, entropy_learns=False)
    made: dict[str, HeadWay | Exception] = {
        TORCH: head_way(TORCH),
        "half": HeadWay("half", fused=targets_alone),
    }
    monkeypatch.setattr(head_choice, "head_way", ways_by(made))
    _, _, left_out = trials(shape, CPU, (OURS.name, *made))
    assert list(left_out) == ["half"]
    assert left_out["half"].startswith("gradients differ by ")


def test_a_fused_way_is_no_candidate_where_the_entropy_learns() -> None:
    _, found, left_out = trials(replace(SHAPE, entropy_learns=True), CPU, (OURS.name, TORCH))
    assert list(found) == [OURS.name]
    assert left_out == {TORCH: "has no gradient of the entropy"}


def test_where_ours_cannot_be_tried_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(head_choice, "head_token_log_probs", short)
    choice = choose(SHAPE, CPU, names=(OURS.name, TORCH))
    assert choice.way is OURS
    assert "ours: OutOfMemoryError: CUDA out of memory." in choice.line
    assert f"{TORCH}: not tried" in choice.line


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    def found(*_: Any) -> Any:
        ways = {name: HeadWay(name) if name != OURS.name else OURS for name in seconds}
        return ways, {name: replace(TRIED, seconds=value) for name, value in seconds.items()}, {}

    monkeypatch.setattr(head_choice, "trials", found)


def test_ranks_take_the_same_and_wait_for_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank takes longer by the second way, and does not have the third."""
    timed(monkeypatch, {"ours": 4.0, "a": 1.0, "b": 2.0, "c": 3.0})
    others = torch.tensor([3.0, 5.0, math.inf, 3.5], dtype=torch.float64)

    def reduced(mine: torch.Tensor, op: Any) -> None:
        assert op == dist.ReduceOp.MAX
        mine.copy_(torch.maximum(mine, others))

    names = ("ours", "a", "b", "c")
    assert choose(SHAPE, CPU, 1, names).way.name == "a"
    monkeypatch.setattr(dist, "all_reduce", reduced)
    choice = choose(SHAPE, CPU, 2, names)
    assert choice.way.name == "c"
    assert choice.line.endswith("c (ours 4000.0 ms; a 5000.0 ms; b: another rank cannot; c 3500.0 ms)")


# -- of a learner --------------------------------------------------------------------------------------------------


def test_on_cpus_it_is_ours_and_nothing_is_timed(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_choice, "choose", broken)
    learner = Learner(family("llama"), Case(family("llama"), {}, KL).spec)
    learner.start_reinforcement()
    assert learner.reference is not None
    assert learner.policy.way is learner.reference.way is OURS
    assert learner.head.choice == HeadChoice()


class OnGpu(torch.nn.Module):
    """What a chooser looks at of a model."""

    def __init__(self, head: torch.Tensor | None) -> None:
        super().__init__()
        self.head_weight = head


def test_it_is_chosen_again_only_when_something_else_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[HeadShape] = []
    other = HeadWay("other")

    def chosen(shape: HeadShape, device: torch.device, ranks: int) -> HeadChoice:
        asked.append(shape)
        assert (device.type, ranks) == ("cuda", 3)
        return HeadChoice(other, shape)

    monkeypatch.setattr(head_choice, "choose", chosen)
    spec = Case(Path("x"), {}, model={"dtype": "bfloat16"}).spec
    chooser = HeadChooser(spec, torch.device("cuda"), 3, True)
    head = torch.zeros(50, 16, requires_grad=True)
    policy, reference = (Policy(OnGpu(head), torch.no_grad) for _ in range(2))
    chooser.choose(policy, None)
    chooser.choose(policy, reference)
    assert policy.way is reference.way is other
    chooser.choose(Policy(OnGpu(head.detach()), torch.no_grad), None)
    whole = HeadShape(50, 16, 40, spec.sampler.temperature, torch.bfloat16, learns=True, entropy_learns=True)
    assert asked == [whole, replace(whole, learns=False)]
    # A model that returns its logits.
    chooser = HeadChooser(spec, torch.device("cuda"), 3, True)
    chooser.choose(logits := Policy(OnGpu(None), torch.no_grad), None)
    assert logits.way is OURS and len(asked) == 2


def test_a_choice_is_told_once_by_the_first_rank(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (0, 1):
        actor = object.__new__(LearnerActor)
        Worker.__init__(actor, f"learner {number}")
        actor.rank, actor._told = number, ""
        for line in ("", "log-probs: a", "log-probs: a", "log-probs: b"):
            choice = HeadChoice(line=line, seconds=2.0)
            actor.learner = SimpleNamespace(head=SimpleNamespace(choice=choice))  # type: ignore[assignment]
            actor._tell_choice()
        spans = actor.spans.drain()
        told = ["log-probs: a", "log-probs: b"] if number == 0 else []
        assert [(span.name, span.args) for span in spans] == [
            ("choose log-probs", {"found": line}) for line in told
        ]
        assert all(span.end - span.start == pytest.approx(2.0) for span in spans)
        assert capsys.readouterr().err == "".join(f"learner 0: {line}\n" for line in told)


def counted(way: HeadWay, calls: list[str]) -> HeadWay:
    """The way, whose forward passes are noted."""

    def noted(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(way.name)
            return run(*arguments)

        return call

    if way.fused is not None:
        return replace(way, fused=noted(way.fused))
    return replace(way, kernels=way.kernels._replace(values=noted(way.kernels.values)))


@pytest.mark.parametrize(
    ("name", "learner", "algorithm", "layout"),
    [
        ("llama", {}, KL, "whole"),
        ("llama", {}, KL, "divided"),
        ("llama", LORA, KL, "whole"),
        ("llama", LORA, KL, "divided"),
        ("qwen3", {}, KL, "divided"),  # a tied head
        ("qwen3", {}, {**KL, "entropyCoefficient": 0.01}, "whole"),
    ],
)
def test_a_run_by_another_way_is_the_same(
    alone: None,
    family: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    learner: Any,
    algorithm: Any,
    layout: str,
) -> None:
    """With a warm start, a KL reference and log-probs from before the first update; with all weights and with LoRA."""
    case = Case(family(name), learner, algorithm, steps=2, warm="lora" not in learner)
    expected = run(case, 0, 1)
    way = counted(
        compiled("aot_eager") if "entropyCoefficient" in algorithm else head_way(TORCH), calls := []
    )

    def forced(self: HeadChooser, policy: Policy, reference: Policy | None) -> None:
        for one in filter(None, (policy, reference)):
            one.way = way

    monkeypatch.setattr(HeadChooser, "choose", forced)
    if layout == "divided":
        monkeypatch.setattr(rank, "layout_of", divided)
    found = run(case, 0, 1)
    assert len(calls) >= 12, (
        "passes of two mini-batches, before and with gradient, and of the reference, of two steps"
    )
    assert found.losses == pytest.approx(expected.losses, abs=1e-5)
    assert found.norms == pytest.approx(expected.norms, rel=1e-4)
    for key, value in expected.weights.items():
        assert found.weights[key] == pytest.approx(value, abs=1e-5), key
