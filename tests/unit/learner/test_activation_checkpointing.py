"""Activations computed again in the backward pass: less is kept, the gradients are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from trajectories import sampled

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.learner.batch import MicroBatch, collate
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.model.library_model import LibraryModel
from rl_trainer.model.resolve import resolve_model
from rl_trainer.trajectory import Trajectory


def spec(activation_checkpointing: bool = False) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny", "tiny": {"hiddenSize": 32, "layers": 2, "intermediateSize": 64}},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "learner": {"activationCheckpointing": activation_checkpointing},
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return resolve_model("tiny", tmp_path_factory.mktemp("models"), spec().model.tiny, 0, None)


def samples() -> list[Trajectory]:
    rng = np.random.default_rng(0)
    made = []
    for length in (9, 14, 14, 20):
        mask = np.arange(length) >= 4
        tokens = rng.integers(3, 60, length).astype(np.int32)
        made.append(sampled(tokens, mask, np.full(length - 4, -4.5, np.float32), float(rng.normal())))
    return made


def bytes_kept(model: torch.nn.Module, batch: MicroBatch) -> int:
    """Memory that autograd holds between forward and backward, parameters included."""
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden_at(batch.input_ids, batch.attention_mask, batch.positions)  # type: ignore[operator]
    assert hidden.requires_grad
    return sum(sizes.values())


def test_the_update_is_the_same_and_less_is_kept(folder: Path) -> None:
    batch = samples()
    denominators = LossDenominators.from_lengths([int(one.mask.sum()) for one in batch])
    learners = [Learner(folder, spec(saving)) for saving in (False, True)]
    plain, saving = (bytes_kept(learner.model, collate(batch)) for learner in learners)
    assert saving < plain / 2
    results = [learner.update([MiniBatch(batch, denominators)]) for learner in learners]
    assert results[0].grad_norm == results[1].grad_norm
    for one, other in zip(*(learner.training.parameters for learner in learners), strict=True):
        assert torch.equal(one, other)


def test_of_the_librarys_model(folder: Path) -> None:
    batch = collate(samples())
    gradients, kept, passes = [], [], []
    for saving in (False, True):
        model = LibraryModel.open(folder)
        if saving:
            model.checkpoint_activations()
        kept.append(bytes_kept(model, batch))
        calls: list[int] = []
        model.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        model.hidden_at(batch.input_ids, batch.attention_mask, batch.positions).sum().backward()
        passes.append(len(calls))
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert passes == [1, 2]
    assert kept[1] < kept[0] / 2
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
