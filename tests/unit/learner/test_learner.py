"""One rank of the learner on a tiny model: batching, splitting, optimizer state, numbers that are not numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from trajectories import sampled

from rl_api import RunSpec
from rl_api.recipes import RECIPES
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_targets import ValueTargets
from rl_trainer.learner.batch import collate
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.learner.sources import offer, weight_source
from rl_trainer.model.folder import read_tensors, write_weights
from rl_trainer.model.resolve import resolve_model
from rl_trainer.trajectory import Trajectory


def spec(**algorithm: object) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny", "tiny": {"hiddenSize": 32, "layers": 1, "intermediateSize": 32}},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"learningRate": 1e-2, **algorithm},
            "stop": {"maxSteps": 10},
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    cache = tmp_path_factory.mktemp("models")
    return resolve_model("tiny", cache, spec().model.tiny, 0, None)


def samples(count: int, seed: int = 0) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(rng.integers(6, 20))
        mask = np.zeros(length, dtype=np.bool_)
        mask[4:] = True
        log_probs = np.full(length - 4, -4.5, dtype=np.float32)
        tokens = rng.integers(3, 60, length).astype(np.int32)
        made.append(sampled(tokens, mask, log_probs, float(rng.normal())))
    return made


def denominators(batch: list[Trajectory]) -> LossDenominators:
    return LossDenominators.from_lengths([int(s.mask.sum()) for s in batch])


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.training.parameters])


def test_collate_predicts_each_sampled_token_from_the_position_before():
    mask = np.array([False, True, False, True])
    sample = sampled(np.array([5, 6, 7, 8], np.int32), mask, np.array([-1.0, -2.0], np.float32), 0.5)
    short = sampled(np.array([9, 4], np.int32), np.array([False, True]), np.array([-3.0], np.float32), -1.0)
    batch = collate([sample, short])
    assert batch.input_ids.tolist() == [[5, 6, 7], [9, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.positions.tolist() == [0, 2, 3]
    assert batch.targets.tolist() == [6, 8, 4]
    assert batch.sampler_log_probs.tolist() == [-1.0, -2.0, -3.0]
    assert batch.advantages.tolist() == [0.5, 0.5, -1.0]
    assert batch.sequence_ids.tolist() == [0, 0, 1]


def test_a_trajectory_of_one_token_is_carried_along(folder: Path):
    lonely = sampled(np.array([5], np.int32), np.array([True]), np.array([-1.0], np.float32), 1.0)
    assert collate([lonely]).positions.tolist() == []
    batch = samples(3)
    learners = [Learner(folder, spec()) for _ in range(2)]
    for learner, extra in zip(learners, ([], [lonely]), strict=True):
        learner.update([MiniBatch([*batch, *extra], denominators(batch))])
    torch.testing.assert_close(weights(learners[0]), weights(learners[1]), rtol=0, atol=1e-6)


def test_micro_batches_do_not_change_the_update(folder: Path):
    batch = samples(12)
    results = []
    for budget in (16_384, 24):
        run = spec().model_copy(
            update={"learner": spec().learner.model_copy(update={"tokens_per_micro_batch": budget})}
        )
        learner = Learner(folder, run)
        result = learner.update([MiniBatch(batch, denominators(batch))])
        results.append((weights(learner), result.grad_norm, result.metrics["loss"]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-5)
    assert results[0][1:] == pytest.approx(results[1][1:], rel=1e-4)


def test_a_prompt_that_answers_share_is_computed_once_and_changes_nothing(folder: Path):
    batch = samples(6)
    for sample in batch[1:4]:  # one group, one sample of another, one that differs in the prompt's last token
        sample.tokens[:4] = batch[0].tokens[:4]
    batch[5].tokens[:3] = batch[0].tokens[:3]
    together = collate(batch)
    assert together.shared is not None
    assert together.shared.tolist() == [[0, 0], [0, 4], [0, 4], [0, 4], [4, 0], [5, 0]]
    learners = [Learner(folder, spec()) for _ in range(2)]
    learners[0].update([MiniBatch(batch, denominators(batch))])
    learners[1]._cut = lambda chosen, version: [collate([one]) for one in chosen]  # type: ignore[method-assign]
    learners[1].update([MiniBatch(batch, denominators(batch))])
    torch.testing.assert_close(weights(learners[0]), weights(learners[1]), rtol=0, atol=1e-6)


def test_collate_shares_only_inputs_before_the_first_sampled_token():
    tokens = np.array([5, 6, 7], np.int32)
    asked = sampled(tokens, np.array([False, False, True]), np.array([-1.0], np.float32))
    silent = sampled(tokens, np.zeros(3, np.bool_), np.zeros(0, np.float32))
    shared = collate([asked, asked, silent]).shared
    assert shared is not None
    assert shared.tolist() == [[0, 0], [0, 2], [2, 0]]


def test_an_advantage_raises_the_log_prob_of_its_tokens(folder: Path):
    batch = samples(4)
    batch = [sampled(s.tokens, s.mask, s.log_probs, 1.0) for s in batch]
    learner = Learner(folder, spec())
    micro = collate(batch)
    with torch.no_grad():
        before = learner.policy(micro, 1.0)[0].mean()
    learner.update([MiniBatch(batch, denominators(batch))])
    with torch.no_grad():
        assert learner.policy(micro, 1.0)[0].mean() > before


def test_optimizer_state_makes_the_next_step_the_same(folder: Path):
    first, second = samples(6, 1), samples(6, 2)
    straight = Learner(folder, spec())
    straight.update([MiniBatch(first, denominators(first))])
    state = {name: value.clone() for name, value in straight.training.optimizer.state().items()}
    model = {name: value.clone() for name, value in straight.model.hf_state_dict().items()}
    resumed = Learner(folder, spec())
    resumed.model.load_hf_state_dict(model)
    resumed.training.optimizer.load(state)
    resumed.training.steps = straight.training.steps
    for learner in (straight, resumed):
        learner.update([MiniBatch(second, denominators(second))])
    assert torch.equal(weights(straight), weights(resumed))


def test_a_loss_that_is_no_number_changes_nothing_and_is_counted(folder: Path):
    batch = samples(3)
    bad = [sampled(s.tokens, s.mask, s.log_probs, math.nan) for s in batch]
    learner = Learner(folder, spec())
    before = weights(learner).clone()
    result = learner.update([MiniBatch(bad, denominators(bad))])
    assert (result.skipped, result.optimizer_steps) == (1, 0)
    assert torch.equal(weights(learner), before)
    assert learner.update([MiniBatch(batch, denominators(batch))]).optimizer_steps == 1


def test_ratio_bound_leaves_out_the_remaining_mini_batches(folder: Path):
    batch = samples(8)
    parts = [MiniBatch(batch, denominators(batch))] * 6
    loose = Learner(folder, spec(learningRate=0.5)).update(parts)
    tight = Learner(folder, spec(learningRate=0.5, ratioBound=1.01)).update(parts)
    assert loose.optimizer_steps == 6
    assert tight.stopped_early > 0
    assert tight.optimizer_steps + tight.stopped_early == 6


def test_collate_takes_advantages_and_ages_of_tokens():
    mask = np.array([False, True, False, True])
    tokens, log_probs = np.array([5, 6, 7, 8], np.int32), np.array([-1.0, -2.0], np.float32)
    one = sampled(tokens, mask, log_probs, np.array([0.5, 0.25]), np.array([1, 4], np.int32))
    newest = np.array([4], np.int32)
    other = sampled(
        np.array([9, 4], np.int32), np.array([False, True]), np.array([-3.0], np.float32), -1.0, newest
    )
    batch = collate([one, other], version=4)
    assert batch.advantages.tolist() == [0.5, 0.25, -1.0]
    assert batch.staleness is not None
    assert batch.staleness.tolist() == [3, 0, 0]
    assert collate([other]).staleness is None


def test_kl_of_every_token_is_what_the_loss_would_measure(folder: Path):
    batch = samples(7)
    batch.append(sampled(np.array([5], np.int32), np.array([True]), np.array([-1.0], np.float32)))
    learner = Learner(folder, spec(kl={"coefficient": 0.1, "placement": "reward", "estimator": "k3"}))
    learner.start_reinforcement()
    first = learner.token_estimates(batch)
    assert first.kl is not None
    assert all(not part.any() for part in first.kl)  # the policy is the reference still
    learner.supervise(batch[:7], denominators(batch[:7]), 1e-2)
    values = learner.token_estimates(batch).kl
    assert values is not None
    assert [len(part) for part in values] == [int(sample.mask.sum()) for sample in batch]
    assert values[7].tolist() == [0.0]
    as_loss = Learner(folder, spec(kl={"coefficient": 0.1}))
    as_loss.reference, as_loss.policy = learner.reference, learner.policy
    measured = as_loss.update([MiniBatch(batch[:7], denominators(batch[:7]))]).metrics["kl"]
    assert np.concatenate(values[:7]).mean() == pytest.approx(measured, rel=1e-5)
    assert "kl" not in learner.update([MiniBatch(batch[:7], denominators(batch[:7]))]).metrics


def test_the_interpolated_policy_saves_the_pass_before_the_first_update(folder: Path):
    batch = samples(4)  # of version 0
    parts = [MiniBatch(batch[:2], denominators(batch[:2])), MiniBatch(batch[2:], denominators(batch[2:]))]
    passes = []
    for proximal in ("recomputed", "interpolated"):
        learner = Learner(folder, spec(loss={"proximal": proximal}))
        counted: list[int] = []
        learner.policy.register_forward_hook(lambda *_, n=counted: n.append(1))
        result = learner.update(parts, version=1)
        passes.append(len(counted))
        assert result.optimizer_steps == 2
    assert passes == [4, 2]
    # Half-way between sampler and policy: the ratio is not 1, even on the first mini-batch.
    assert result.metrics["ratio_mean"] != pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("algorithm", [{"name": name} for name in RECIPES] + [{"loss": {"kind": "dppo"}}])
def test_every_recipe_raises_what_was_good_and_lowers_what_was_bad(
    folder: Path, algorithm: dict[str, object]
):
    batch = [replace(one, advantage=1.0 if index % 2 else -1.0) for index, one in enumerate(samples(8))]
    run = spec(**algorithm)
    learner = Learner(folder, run)
    learner.start_reinforcement()
    micro = collate(batch)
    with torch.no_grad():
        own = learner.policy(micro, 1.0)[0]
    counts = np.cumsum([len(one.log_probs) for one in batch])[:-1]
    nothing = [np.zeros(len(one.log_probs)) for one in batch]  # for the critic of ppo
    batch = [
        replace(
            one,
            log_probs=part,
            advantage=ValueTargets(np.full(len(part), one.advantage), zeros, zeros)
            if run.algorithm.value_model
            else one.advantage,
        )
        for one, part, zeros in zip(batch, np.split(own.numpy(), counts), nothing, strict=True)
    ]
    lengths = [len(one.log_probs) for one in batch]
    learner.update([MiniBatch(batch, LossDenominators.from_lengths(lengths, run.sampler.max_new_tokens))])
    with torch.no_grad():
        change = learner.policy(micro, 1.0)[0] - own
    assert (change * micro.advantages).sum() > 0


def test_kl_is_measured_against_the_policy_that_reinforcement_started_from(folder: Path):
    batch = samples(6)
    learner = Learner(folder, spec(kl={"coefficient": 0.1}))
    learner.supervise(batch, denominators(batch), 1e-2)
    learner.start_reinforcement()
    first = learner.update([MiniBatch(batch, denominators(batch))])
    second = learner.update([MiniBatch(batch, denominators(batch))])
    assert first.metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert second.metrics["kl"] > 1e-4


def test_weights_are_written_in_the_number_format_that_is_asked_for(folder: Path, tmp_path: Path):
    learner = Learner(folder, spec())
    expected = {name: one.make() for name, one in learner.model.hf_tensors().items()}  # type: ignore[operator]
    write_weights(weight_source(learner, torch.bfloat16), tmp_path)
    found = read_tensors(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(found[name], value.to(torch.bfloat16)), name


def test_rows_are_in_the_decoders_order_for_samplers_that_compute_with_it(folder: Path):
    run = spec()
    for engine, ours in (("torch", True), ("vllm", False)):
        sampler = run.sampler.model_copy(update={"engine": engine})
        learner = Learner(folder, run.model_copy(update={"sampler": sampler}))
        offered = offer(learner, torch.float32)
        assert not offered.weights().interleaved
        assert bool(offered.as_laid().interleaved) == ours
