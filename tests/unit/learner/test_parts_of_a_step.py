"""A step that is learned in parts has the gradient, the metrics and the statistics of the step as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from divided_learners import Case, run

from rl_api import RunSpec
from rl_api.parts import part_groups
from rl_trainer.algorithms.advantages import AdvantageStats
from rl_trainer.algorithms.batch_advantages import batch_advantages, stats_of_parts
from rl_trainer.algorithms.losses import Aggregation
from rl_trainer.learner.plan import plan_groups
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.model.resolve import resolve_model
from rl_trainer.trajectory import Group, Trajectory, unpack

GROUPS = 5


def spec(algorithm: dict[str, Any], **learner: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny", "tiny": {"hiddenSize": 32, "layers": 1, "intermediateSize": 32}},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"promptsPerStep": GROUPS, "groupSize": 3, **algorithm},
            "learner": {"tokensPerMicroBatch": 60, **learner},
            "placement": {"partGroups": 2},
            "stop": {"maxSteps": 10},
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return resolve_model("tiny", tmp_path_factory.mktemp("models"), spec({}).model.tiny, 0, None)


def batch() -> list[Group]:
    """Answers of 2 to 15 tokens; one group's rewards are all equal, and some answers were cut off."""
    rng = np.random.default_rng(3)
    groups = []
    for group_id in range(GROUPS):
        prompt = rng.integers(3, 60, 4)
        members = []
        for member in range(3):
            length = int(rng.integers(2, 16))
            members.append(
                Trajectory(
                    np.concatenate([prompt, rng.integers(3, 60, length)]).astype(np.int32),
                    np.arange(4 + length) >= 4,
                    rng.normal(-4.2, 0.1, length).astype(np.float32),
                    rng.integers(0, 3, length).astype(np.int32),
                    reward=1.0 if group_id == 2 else float(rng.integers(0, 5)),
                    truncated=member == 1 and group_id in (0, 3),
                )
            )
        groups.append(Group.of(group_id, members))
    return groups


def learned(
    learner: Learner, run: RunSpec, groups: list[Group], size: int
) -> tuple[list[torch.Tensor], Any, AdvantageStats]:
    """Gradients that the optimizer is given, what the step tells, and the statistics, learned `size` groups at a time."""
    given: list[torch.Tensor] = []

    def step(loss: float, rate: float) -> float:
        given.extend(p.grad.detach().clone() for p in learner.training.parameters if p.grad is not None)
        return learner.training._gradients.norm()

    learner.training.step = step  # type: ignore[method-assign]
    stats = []
    for begin in range(0, len(groups), size):
        part = groups[begin : begin + size]
        kl = None
        if run.algorithm.kl.placement == "reward":
            kl = learner.token_estimates([one for group in part for one in unpack(group.payload)]).kl
        advantages, found = batch_advantages(run, part, kl)
        stats.append(found)
        (plan,) = plan_groups(run, part, advantages, ranks=1, step=4)
        members = [unpack(group.payload) for group in part]
        share = MiniBatch(
            [replace(members[one.group][one.member], advantage=one.advantage) for one in plan.ranks[0]],
            plan.denominators,
        )
        if size == len(groups):
            return given, learner.update([share], version=4), found
        learner.accumulate(share, version=4)
    return given, learner.apply(), stats_of_parts(groups, stats)


def same(folder: Path, run: RunSpec) -> None:
    groups = batch()
    results = []
    for size in (GROUPS, part_groups(run), 1):
        learner = Learner(folder, run)
        learner.start_reinforcement()
        results.append(learned(learner, run, groups, size))
    whole, *others = results
    assert whole[1].grad_norm > 1e-3
    for gradients, told, stats in others:
        for found, expected in zip(gradients, whole[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert told.metrics == pytest.approx(whole[1].metrics, rel=1e-5, abs=1e-6)
        assert told.grad_norm == pytest.approx(whole[1].grad_norm, rel=1e-5)
        assert (told.learning_rate, told.optimizer_steps) == (whole[1].learning_rate, 1)
        assert stats == whole[2]


@pytest.mark.parametrize("estimator", ["groupMean", "leaveOneOut", "maxRl"])
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_every_aggregation_and_estimator(folder: Path, aggregation: str, estimator: str):
    same(folder, spec({"loss": {"aggregation": aggregation}, "advantage": {"estimator": estimator}}))


@pytest.mark.parametrize(
    ("algorithm", "learner"),
    [
        ({"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.05}, {}),
        ({"kl": {"coefficient": 0.1, "placement": "reward"}}, {}),
        ({"name": "dapo", "miniBatches": 1, "overlong": {"maskTruncated": True}}, {}),
        ({"name": "gspo", "miniBatches": 1}, {}),
        ({"name": "cispo", "miniBatches": 1}, {}),
        ({"loss": {"proximal": "interpolated"}}, {}),
        ({"loss": {"kind": "dppo"}, "ratioBound": 100}, {}),
        ({"kl": {"coefficient": 0.1}}, {"lora": {"rank": 3, "targetModules": ["q_proj", "o_proj"]}}),
    ],
)
def test_terms_of_the_loss_objectives_and_adapters(
    folder: Path, algorithm: dict[str, Any], learner: dict[str, Any]
):
    same(folder, spec(algorithm, **learner))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_runs_of_several_steps(family: Callable[[str], Path], name: str):
    case = Case(family(name), {}, {"kl": {"coefficient": 0.05}}, steps=3)
    whole, parts = run(case, 0, 1), run(replace(case, parts=3, away=name == "gpt2"), 0, 1)
    assert parts.losses == pytest.approx(whole.losses, abs=1e-6)
    for key, value in whole.weights.items():
        assert parts.weights[key] == pytest.approx(value, abs=1e-6), key


def test_a_ratio_beyond_its_bound_drops_the_step(folder: Path):
    run = spec({"loss": {"proximal": "interpolated"}, "ratioBound": 1.5})
    learner = Learner(folder, run)
    learner.start_reinforcement()
    before = [p.detach().clone() for p in learner.training.parameters]
    (plan,) = plan_groups(run, batch(), [1.0] * 3 * GROUPS, ranks=1, step=0)
    members = [unpack(group.payload) for group in batch()]
    share = [members[one.group][one.member] for one in plan.ranks[0]]
    share = [replace(one, log_probs=one.log_probs - 4) for one in share]
    learner.accumulate(MiniBatch(share, plan.denominators), version=4)
    told = learner.apply()
    assert (told.optimizer_steps, told.stopped_early, told.metrics) == (0, 1, {})
    assert all(torch.equal(a, b) for a, b in zip(before, learner.training.parameters, strict=True))


def test_a_part_that_is_no_number_leaves_the_step_out(folder: Path):
    run = spec({})
    learner = Learner(folder, run)
    learner.start_reinforcement()
    shares = []
    for advantage in (float("nan"), 1.0):
        (plan,) = plan_groups(run, batch(), [advantage] * 3 * GROUPS, ranks=1, step=0)
        members = [unpack(group.payload) for group in batch()]
        shares.append(
            MiniBatch(
                [replace(members[one.group][one.member], advantage=one.advantage) for one in plan.ranks[0]],
                plan.denominators,
            )
        )
    learner.accumulate(shares[0])
    learner.accumulate(shares[1])
    assert learner.apply().skipped == 1
    learner.accumulate(shares[1])
    assert learner.apply().optimizer_steps == 1


def test_the_optimizers_seconds_are_told_apart_from_those_of_the_exchange(folder: Path):
    learner = Learner(folder, spec({}))
    learner.start_reinforcement()
    learner.meter.drain()
    (plan,) = plan_groups(spec({}), batch(), [1.0] * 3 * GROUPS, ranks=1, step=0)
    members = [unpack(group.payload) for group in batch()]
    learner.accumulate(
        MiniBatch([members[one.group][one.member] for one in plan.ranks[0]], plan.denominators)
    )
    assert learner.apply().optimizer_steps == 1
    told = learner.meter.drain()
    assert all(told[part] > 0 for part in ("passes", "reduce", "optimizer"))
