"""The optimizer against torch's own, and its state."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from rl_api.algorithm import OptimizerSpec
from rl_trainer.learner.optimizer import AdamW
from rl_trainer.learner.optimizer import _parts as optimizer_parts

OPTIONS = {"betas": (0.9, 0.95), "weight_decay": 0.1}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def fill_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_steps_are_those_of_torch_bit_by_bit():
    ours, theirs = network(), network()
    optimizer = AdamW(dict(ours.named_parameters()), OptimizerSpec(epsilon=1e-7, **OPTIONS))
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.0, eps=1e-7, fused=True, **OPTIONS)
    for step in range(5):
        rate = 1e-2 / (step + 1)
        fill_gradients(ours, step)
        fill_gradients(theirs, step)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        optimizer.step(rate)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)


def test_moments_in_main_memory_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    """Also where a parameter is moved in parts, the last of which has an odd number of rows."""
    monkeypatch.setattr("rl_trainer.learner.optimizer.MOVED", 1000)

    def made() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 331), nn.Linear(331, 67), nn.Linear(67, 67, bias=False))
        model.register_parameter("scale", nn.Parameter(torch.tensor(0.5)))
        return model

    models = made(), made()
    optimizers = [
        AdamW(dict(model.named_parameters()), OptimizerSpec(**OPTIONS), offload=offload)
        for model, offload in zip(models, (False, True), strict=True)
    ]
    assert len(list(optimizer_parts([models[1][0].weight]))) == 2  # 331 rows of 5: 192 and 139
    for step in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            fill_gradients(model, step)
            optimizer.step(1e-2)
    states = [
        {**optimizer.state(), **dict(model.named_parameters())}
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value), name
    assert states[1]["step/scale"] == 4


def test_its_state_goes_on_where_it_was():
    ours, other = network(), network()
    first = AdamW(dict(ours.named_parameters()), OptimizerSpec(**OPTIONS))
    assert first.state() == {}
    fill_gradients(ours, 0)
    first.step(0.1)
    other.load_state_dict(ours.state_dict())
    second = AdamW(dict(other.named_parameters()), OptimizerSpec(**OPTIONS))
    second.load(first.state())
    for model, optimizer in ((ours, first), (other, second)):
        fill_gradients(model, 1)
        optimizer.step(0.1)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))
    assert first.state()["step/0.bias"] == 2
    assert set(first.state()) == {
        f"{key}/{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name, _ in ours.named_parameters()
    }
    second.load({})
    assert second.state() == {}


def test_a_part_that_is_missing_is_named():
    model = network()
    optimizer = AdamW(dict(model.named_parameters()), OptimizerSpec(**OPTIONS))
    fill_gradients(model, 0)
    optimizer.step(0.1)
    state = optimizer.state()
    del state["exp_avg/1.bias"]
    with pytest.raises(KeyError, match=r"exp_avg/1\.bias"):
        optimizer.load(state)


def test_a_learner_starts_without_the_compiler():
    """It takes longer to import than torch itself."""
    program = (
        "import sys, torch; from torch import nn; from rl_trainer.learner import optimizer, rank\n"
        "p = nn.Parameter(torch.ones(2)); p.grad = torch.ones(2)\n"
        "optimizer.AdamW({'p': p}, optimizer.OptimizerSpec()).step(0.1)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
