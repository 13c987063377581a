"""A learner with LoRA: what learns, what is published, what a KL penalty refers to, and how it goes on from a checkpoint."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import save_model
from trajectories import sampled

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.learner.batch import collate
from rl_trainer.learner.policy import Policy
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.model.decoder import load_decoder
from rl_trainer.model.resolve import resolve_model
from rl_trainer.trajectory import Trajectory


def spec(**changes: object) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny", "tiny": {"hiddenSize": 32, "layers": 2, "intermediateSize": 64}},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "learner": {"lora": {"rank": 4, "alpha": 8}},
            "algorithm": {"learningRate": 0.01, "kl": {"coefficient": 0.1}},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return resolve_model("tiny", tmp_path_factory.mktemp("models"), spec().model.tiny, 0, None)


def batch(seed: int) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    made = []
    for length in (9, 14, 20):
        tokens = rng.integers(3, 60, length).astype(np.int32)
        log_probs = np.full(length - 4, -4.5, np.float32)
        made.append(sampled(tokens, np.arange(length) >= 4, log_probs, float(rng.normal())))
    return made


def update(learner: Learner, seed: int) -> dict[str, float]:
    samples = batch(seed)
    denominators = LossDenominators.from_lengths([int(one.mask.sum()) for one in samples])
    result = learner.update([MiniBatch(samples, denominators)])
    assert result.optimizer_steps == 1
    return result.metrics


def published(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.model.hf_state_dict().items()}


def test_the_adapters_alone_learn_and_merged_weights_are_published(folder: Path) -> None:
    learner = Learner(folder, spec())
    before = published(learner)
    learner.start_reinforcement()
    assert all(torch.equal(value, before[name]) for name, value in published(learner).items())
    base = {name: p.detach().clone() for name, p in learner.model.named_parameters() if not p.requires_grad}
    update(learner, 0)
    after = published(learner)
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    assert all(torch.equal(p, base[name]) for name, p in learner.model.named_parameters() if name in base)
    # Two of the rank's numbers per row and column, and no more, have gradients and moments.
    assert sum(p.numel() for p in learner.training.parameters) == sum(
        4 * sum(before[name].shape) for name in changed
    )
    assert {name.partition("/")[2] for name in learner.training.optimizer.state()} == {
        name for name, p in learner.model.named_parameters() if p.requires_grad
    }


def test_a_kl_penalty_refers_to_the_base_without_a_copy_of_it(folder: Path) -> None:
    learner = Learner(folder, spec())
    learner.start_reinforcement()
    assert learner.reference is None
    assert update(learner, 0)["kl"] == pytest.approx(0, abs=1e-6)
    assert update(learner, 1)["kl"] > 1e-4
    micro = collate(batch(0))
    with torch.no_grad():
        expected, _ = Policy(load_decoder(folder), nullcontext)(micro, 1.0)
        assert torch.equal(learner._reference_log_probs(micro), expected)


def test_the_warm_start_trains_all_weights_and_makes_the_base(folder: Path) -> None:
    learner = Learner(folder, spec(warmStart={}))
    samples = batch(0)
    denominators = LossDenominators.from_lengths([int(one.mask.sum()) for one in samples])
    before = published(learner)
    learner.supervise(samples, denominators, 0.01)
    warm = published(learner)
    assert not torch.equal(warm["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    learner.start_reinforcement()
    assert all((p.grad is not None) == p.requires_grad for p in learner.model.parameters())
    update(learner, 1)
    assert all(p.grad is None for p in learner.model.parameters() if not p.requires_grad)
    assert torch.equal(published(learner)["model.embed_tokens.weight"], warm["model.embed_tokens.weight"])


def test_a_resumed_learner_goes_on_bit_by_bit(folder: Path, tmp_path: Path) -> None:
    straight = Learner(folder, spec())
    straight.start_reinforcement()
    initial, merged = tmp_path / "initial", tmp_path / "model"
    save_model(straight.model, folder, initial)
    update(straight, 0)
    save_model(straight.model, folder, merged)
    moments = {name: value.clone() for name, value in straight.training.optimizer.state().items()}
    adapter, steps = straight.model.adapter_state(), straight.training.steps
    resumed = Learner(merged, spec())
    resumed.resume(initial, adapter)
    resumed.training.optimizer.load(moments)
    resumed.training.steps = steps
    for learner in (straight, resumed):
        update(learner, 1)
    assert resumed.model.adapter_state().keys() == straight.model.adapter_state().keys()
    for name, value in published(straight).items():
        assert torch.equal(published(resumed)[name], value), name


def test_a_critic_learns_adapters_too(folder: Path) -> None:
    learner = Learner(folder, spec(algorithm={"name": "ppo"}))
    learner.start_reinforcement()
    assert learner.critic is not None
    learning = {name for name, p in learner.critic.model.named_parameters() if p.requires_grad}
    assert "value_head" in learning
    assert all(".adapters." in name for name in learning - {"value_head"})
