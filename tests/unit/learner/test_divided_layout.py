"""A model that is divided over the ranks, of which here is one: the layout's own work, and what learns from nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from divided_learners import Case, divided, run

from rl_api.errors import ModelError
from rl_trainer.learner import rank
from rl_trainer.learner.batch import idle_batch
from rl_trainer.learner.host_memory import FreeingReduceScatter, give_back_freed_memory
from rl_trainer.learner.layout import WholeLayout, layout_of
from rl_trainer.learner.rank import Learner
from rl_trainer.learner.saving import Save, contents
from rl_trainer.model.library_model import LibraryModel

LORA = {"lora": {"rank": 3, "targetModules": ["q_proj", "o_proj"]}}
PPO = {"name": "ppo", "miniBatches": 2, "kl": {"coefficient": 0.05, "placement": "reward"}}


@pytest.mark.parametrize(
    ("name", "learner", "algorithm"),
    [
        ("llama", {}, PPO),
        ("llama", {**LORA, "activationCheckpointing": True}, {"kl": {"coefficient": 0.05}}),
        ("qwen3-moe", LORA, PPO),
    ],
)
def test_one_rank_of_a_divided_model_is_a_whole_one(
    alone: None, family: Any, monkeypatch: pytest.MonkeyPatch, name: str, learner: Any, algorithm: Any
):
    case = Case(family(name), learner, algorithm, steps=2)
    whole = run(case, 0, 1)
    monkeypatch.setattr(rank, "layout_of", divided)
    found = run(case, 0, 1)
    assert found.losses == pytest.approx(whole.losses, abs=1e-5)
    assert found.held == whole.held
    for key, value in whole.weights.items():
        assert found.weights[key] == pytest.approx(value, abs=1e-5), key


@pytest.mark.parametrize(("name", "dtype"), [("granite-swa", "bfloat16"), ("mamba", "float32")])
def test_families_with_windows_of_attention_or_with_layers_within_layers(
    alone: None, family: Any, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
):
    case = Case(family(name), {}, {"kl": {"coefficient": 0.05}}, {"dtype": dtype}, steps=1)
    whole = run(case, 0, 1)
    monkeypatch.setattr(rank, "layout_of", divided)
    found = run(case, 0, 1)
    tolerance = 1e-5 if dtype == "float32" else 0.03
    assert found.losses == pytest.approx(whole.losses, abs=tolerance)
    assert found.norms == pytest.approx(whole.norms, rel=tolerance)


def test_an_idle_batch_changes_nothing_but_that_gradients_are_there(
    alone: None, family: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rank, "layout_of", divided)
    learner = Learner(family("llama"), Case(family("llama"), {}, PPO).spec)
    learner.start_reinforcement()
    assert learner.divided
    learner.training.zero()
    log_probs, _ = learner.policy(idle_batch(), 1.0)
    (log_probs * 0).sum().backward()
    assert all(p.grad is not None and not p.grad.to_local().any() for p in learner.training.parameters)
    assert learner._cut([])[0].idle
    result = learner.update([rank.MiniBatch([], rank.LossDenominators.from_lengths([]))])
    assert result.grad_norm == 0.0
    assert contents(learner) == ("weights", "optimizer", "critic")
    names = [head.name for head in Save(learner, {part: part for part in contents(learner)}).heads]
    assert names == ["weights.safetensors", "optimizer.safetensors", "critic.safetensors"]


def test_what_the_run_asks_for_is_chosen(alone: None):
    options = {"device": torch.device("cpu"), "dtype": torch.float32, "precision": None}
    spec = Case(Path("x"), {"parallelism": "fsdp2"}).spec.learner
    make = partial(layout_of, **options)
    assert isinstance(make(spec, ranks=1), WholeLayout), "one rank has nothing to divide"
    assert isinstance(make(Case(Path("x")).spec.learner, ranks=4), WholeLayout)


def test_a_family_without_a_list_of_layers_is_refused(family: Any, monkeypatch: pytest.MonkeyPatch):
    model = LibraryModel.open(family("gpt2"))
    monkeypatch.setattr(model.model, "_no_split_modules", None)
    with pytest.raises(ModelError, match=r"learner\.parallelism: found fsdp2, .* GPT2LMHeadModel belong"):
        model.parts()


def test_a_sum_over_ranks_frees_what_was_summed_up(alone: None):
    scatter = FreeingReduceScatter()
    given = scatter.allocate((6,), dtype=torch.float32, device=torch.device("cpu")).copy_(torch.arange(6.0))
    found = scatter.allocate((6,), dtype=torch.float32, device=torch.device("cpu"))
    scatter(found, given, dist.group.WORLD, dist.ReduceOp.SUM)
    assert found.tolist() == [0, 1, 2, 3, 4, 5]
    assert given.untyped_storage().nbytes() == 0


def test_freed_memory_is_given_back_where_the_library_can():
    give_back_freed_memory()
