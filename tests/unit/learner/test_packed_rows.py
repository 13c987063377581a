"""Models of the library's with several sequences in a row: the numbers of each sequence by itself, or rows of their own."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from divided_learners import Case, run, samples

from rl_trainer.learner.batch import collate
from rl_trainer.learner.critic import ValueModel
from rl_trainer.learner.packing import micro_batches
from rl_trainer.learner.packing_check import packing_is_exact
from rl_trainer.learner.policy import Policy
from rl_trainer.learner.rank import Learner
from rl_trainer.model.library_model import LibraryModel

CPU = torch.device("cpu")
BUDGET = 300  # tokens of a micro-batch


@pytest.mark.parametrize("one_row", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma", "phi3", "gpt2", "qwen3-moe", "granite-swa"])
def test_packed_sequences_have_the_numbers_of_each_alone(
    family: Any, monkeypatch: pytest.MonkeyPatch, name: str, one_row: bool
) -> None:
    model = LibraryModel.open(family(name))
    policy = Policy(model, nullcontext)
    critic = ValueModel(model, nullcontext, CPU)
    torch.nn.init.normal_(critic.value_head, std=0.1)
    assert packing_is_exact(policy, CPU)
    assert not model.packs, "asking changes nothing"
    monkeypatch.setattr(LibraryModel, "one_row", one_row)
    found: dict[str, list[torch.Tensor]] = {}
    batch = samples(6, 5)
    for packs in (False, True):
        model.packs = packs
        parts = [collate(batch)] if packs else [collate([one]) for one in batch]
        model.zero_grad()
        log_probs = torch.cat([policy(part, 0.7)[0] for part in parts])
        values = torch.cat([critic(part) for part in parts])
        (log_probs.sum() + values.square().sum()).backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.setdefault("log-probs", []).append(log_probs)
        found.setdefault("values", []).append(values)
        found.setdefault("gradients", []).append(torch.cat(gradients))
    for key, (alone, packed) in found.items():
        size = alone.abs().max() if key == "gradients" else 1.0  # sums over all tokens
        assert (alone - packed).abs().max() < 1e-5 * size, key


class _Leaks(torch.nn.Module):
    """Positions and tokens of the whole row decide, as with a model that knows no `position_ids`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.wrapped, self.config = model, model.config

    def forward(
        self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, **more: Any
    ) -> Any:
        return self.wrapped(input_ids=input_ids, attention_mask=attention_mask, **more)


def test_what_would_see_its_neighbours_keeps_rows_of_its_own(family: Any) -> None:
    recurrent = LibraryModel.open(family("mamba"))
    assert not recurrent.packable
    assert not packing_is_exact(Policy(recurrent, nullcontext), CPU)
    deaf = LibraryModel(_Leaks(LibraryModel.open(family("gpt2")).model))
    assert deaf.packable
    assert not packing_is_exact(Policy(deaf, nullcontext), CPU)
    chunked = LibraryModel.open(family("gemma"))
    chunked.model.config.attention_chunk_size = 4
    assert not chunked.packable


def test_a_learner_packs_and_learns_the_same(family: Any) -> None:
    case = Case(
        family("gemma"), {"tokensPerMicroBatch": 1}, {"name": "ppo", "kl": {"coefficient": 0.05}}, steps=2
    )
    alone, packed = run(case, 0, 1), run(replace(case, learner={"tokensPerMicroBatch": BUDGET}), 0, 1)
    assert packed.losses == pytest.approx(alone.losses, abs=1e-5)
    for key, value in alone.weights.items():
        assert packed.weights[key] == pytest.approx(value, abs=1e-5), key
    learner = Learner(case.folder, replace(case, learner={"tokensPerMicroBatch": BUDGET}).spec)
    assert learner.model.packs
    batch = samples(20, 1)
    lengths = [len(one.tokens) for one in batch]
    assert len(learner.cuts.of(batch, learner.model)) == 1 < len(micro_batches(lengths, BUDGET))
    assert learner.cuts.of(samples(20, 1), learner.model) is learner.cuts.of(batch, learner.model), "cut once"
    assert len(learner.cuts.of(batch[:2], learner.model)[0]) == 2
    learner.model.packs = False  # type: ignore[assignment]
    assert learner.cuts.of(batch, learner.model) == micro_batches(lengths, BUDGET)
