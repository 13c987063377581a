"""A learner whose tensors are away between its steps learns the same, bit for bit; while they are, it refuses the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from divided_learners import Case, run, samples

from rl_api.errors import RLTrainError
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.learner.saving import Save, contents
from rl_trainer.learner.sources import offer

PPO = {"name": "ppo", "miniBatches": 2, "kl": {"coefficient": 0.05, "placement": "reward"}}
KL = {"kl": {"coefficient": 0.05}}
LORA = {"lora": {"rank": 3, "targetModules": ["q_proj", "o_proj"]}}


@pytest.mark.parametrize(
    ("name", "learner", "algorithm", "warm"),
    [
        ("llama", {}, PPO, True),
        ("llama", LORA, KL, False),
        ("gemma", {"optimizerOffload": True}, KL, False),  # its head is tied to the embeddings
        ("qwen3-moe", {}, {}, False),
    ],
)
def test_steps_estimates_and_checkpoints_are_the_same_bits(
    family: Any, tmp_path: Path, name: str, learner: Any, algorithm: Any, warm: bool
):
    folders = [tmp_path / "away", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    case = Case(family(name), learner, algorithm, steps=3, warm=warm, saved=folders[1])
    expected = run(case, 0, 1)
    found = run(replace(case, away=True, saved=folders[0]), 0, 1)
    assert (found.losses, found.norms) == (expected.losses, expected.norms)
    for key, value in expected.weights.items():
        np.testing.assert_array_equal(found.weights[key], value, err_msg=key)
    for array, other in zip(found.estimates, expected.estimates, strict=True):
        np.testing.assert_array_equal(array, other)
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == sorted(path.name for path in folders[1].iterdir())
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_gradients_that_wait_for_their_step_are_moved_and_spent_ones_are_not(family: Any):
    learner = Learner(family("llama"), Case(family("llama")).spec)
    learner.start_reinforcement()
    batch = samples(4, 0)
    whole = LossDenominators.from_lengths([int(one.mask.sum()) for one in batch])
    learner._backward(learner._cut(batch), learner._policy_loss(whole))
    waiting = [
        parameter.grad.clone() for parameter in learner.training.parameters if parameter.grad is not None
    ]
    learner.offload()
    learner.onload()
    there = [parameter.grad for parameter in learner.training.parameters if parameter.grad is not None]
    assert all(map(torch.equal, waiting, there))
    assert learner.training.step(0.0, 1e-3) is not None
    moved = learner.offload()
    assert moved > 0
    learner.onload()
    assert learner.training.memory()[1], "they are void now"
    assert learner.device_bytes >= moved


def test_what_needs_the_tensors_is_refused_while_they_are_away(family: Any):
    learner = Learner(family("llama"), Case(family("llama")).spec)
    learner.start_reinforcement()
    learner.offload()
    part = MiniBatch(samples(2, 0), LossDenominators.from_lengths([4, 4]))
    offered = offer(learner, torch.float32)
    refused = {
        "a step": lambda: learner.update([part]),
        "a supervised step": lambda: learner.supervise(part.samples, part.denominators, 1e-3),
        "computing KL and values": lambda: learner.token_estimates(part.samples),
        "starting reinforcement learning": learner.start_reinforcement,
        "its weights are published": offered.weights,
        "its adapters are published": offered.adapter,
        "its files of a checkpoint are written": lambda: Save(learner, dict.fromkeys(contents(learner), "x")),
    }
    for doing, call in refused.items():
        with pytest.raises(
            RLTrainError, match=f"learner 0: its tensors are offloaded; onload them before {doing}"
        ):
            call()
    learner.onload()
    assert learner.update([part]).optimizer_steps == 1
