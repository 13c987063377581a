"""Weights of runs with LoRA: the base travels once, adapters after it, and what is received is what merged weights are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from kept_blocks import KeptBlocks

from rl_api import LoraSpec, RunSpec
from rl_api.errors import DeadlineExceeded, ModelError
from rl_trainer.learner.rank import Learner
from rl_trainer.learner.sources import offer
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.weights.payload import shapes_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.create import create_publisher, create_receiver
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver
from rl_trainer.weights.transports.publication import Publication

torch.set_num_threads(1)
TARGETS = {"gpt2": ["c_attn", "c_proj", "c_fc"], "qwen2-tied": ["q_proj", "k_proj", "v_proj", "down_proj"]}
TOKENS = torch.randint(2, 61, (3, 20), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=TARGETS)
def learner(request: pytest.FixtureRequest) -> Learner:
    """One whose adapters are yet to come."""
    name = request.param
    folder = request.getfixturevalue("family_folder")(name)
    lora = {"rank": 3, "alpha": 12, "targetModules": TARGETS[name]}
    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "learner": {"lora": lora},
        }
    )
    found = Learner(folder, spec)
    found.folder = folder  # type: ignore[attr-defined]
    return found


def learn(learner: Learner, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def published(publisher: object, offered: Offer, version: int) -> Publication:
    found: Publication | None = publisher.publish(offered, version)  # type: ignore[attr-defined]
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_received_is_what_merged_weights_are(learner: Learner, dtype: torch.dtype):
    store, merged = KeptBlocks(), KeptBlocks()
    publisher, receiver = (
        create_publisher("adapter", store, rank=0),
        create_receiver("adapter", store, place="here"),
    )
    whole, theirs = StorePublisher(merged, 0), StoreReceiver(merged, "here")
    engine = create_engine(learner.folder, slots=2, dtype=dtype)  # type: ignore[attr-defined]
    first = published(publisher, offer(learner, dtype), -2)
    assert (first.way, first.base) == ("objectStore", None), "in a warm start there is no adapter"
    receiver.receive(first, 1.0)
    learner.start_reinforcement()
    bases, sent = [], []
    for version in range(3):
        before = store.bytes
        publication = published(publisher, offer(learner, dtype), version)
        sent.append(store.bytes - before)
        assert (publication.way, publication.version) == ("adapter", version)
        bases.append(publication.base)
        found = receiver.receive(publication, 1.0)
        expected = theirs.receive(published(whole, offer(learner, dtype), version), 1.0)
        assert shapes_of(found) == shapes_of(expected)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == dtype
            # In bfloat16 one of its last bits, where the order of a sum in fp32 has decided.
            torch.testing.assert_close(
                found[name], value, rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=1e-7
            )
        engine.load_weights(found, version)
        if dtype == torch.float32:
            model = engine._decoder if hasattr(engine, "_decoder") else engine._model  # type: ignore[attr-defined]
            with torch.no_grad():
                ours, learned = (one(TOKENS).log_softmax(-1) for one in (model, learner.model))
            torch.testing.assert_close(ours, learned, rtol=1e-5, atol=1e-5)
        learn(learner, version)
    assert bases[0] == bases[1] == bases[2]
    adapters = sum(value.nbytes for value in learner.model.adapter_state().values())
    assert adapters < sent[1] < adapters + 20_000
    assert sent[0] > sent[1] + sum(value.nbytes for value in expected.values()), (
        "the base went with the first"
    )
    assert sent[1] == pytest.approx(sent[2], abs=100)


def test_a_joiner_takes_the_base_first_and_is_told_what_does_not_come(learner: Learner):
    store = KeptBlocks()
    publisher = create_publisher("adapter", store, rank=0)
    learner.start_reinforcement()
    for version in range(2):
        publication = published(publisher, offer(learner, torch.float32), version)
        learn(learner, version)
    found = create_receiver("adapter", store, place="here").receive(publication, 1.0)
    assert found.keys() == learner.model.hf_tensors().keys()  # type: ignore[operator]
    base = publication.base
    assert base is not None
    lost = Publication(1, "adapter", [99], base=base)
    with pytest.raises(
        DeadlineExceeded, match=r"^sampler 3: weights of version 1 did not arrive within weightSync"
    ):
        create_receiver("adapter", store, place="sampler 3").receive(lost, 60.0)
    lost = Publication(1, "adapter", publication.blocks, base=Publication(0, "objectStore", [99]))
    with pytest.raises(
        DeadlineExceeded, match=r"^sampler 3: weights of version 0 did not arrive within weightSync"
    ):
        create_receiver("adapter", store, place="sampler 3").receive(lost, 60.0)


def test_other_ranks_take_part_and_publish_nothing(learner: Learner):
    store, made = KeptBlocks(), []
    learner.start_reinforcement()
    offered = offer(learner, torch.float32)
    adapter = offered.adapter()
    assert adapter is not None

    def noted(name: str, make: object) -> object:
        made.append(name)
        return make()  # type: ignore[operator]

    counted = type(adapter)(
        partial(noted, "adapter", adapter.tensors),
        partial(noted, "base", adapter.base),
        adapter.adapted,
        adapter.dtype,  # type: ignore[arg-type]
    )
    publisher = create_publisher("adapter", store, rank=1)
    for version in range(2):
        assert publisher.publish(Offer(offered.weights, lambda: counted), version) is None
    assert made == ["base", "adapter", "adapter"], "as the first rank does"
    assert not store.blocks


def test_a_weight_that_files_hold_in_another_form_is_refused(gpt2: Path, monkeypatch: pytest.MonkeyPatch):
    from rl_trainer.model import library_model

    model = library_model.LibraryModel.open(gpt2)
    model.add_lora(LoraSpec(rank=2, alpha=2, target_modules=("c_fc",)), seed=0)
    assert set(model.adapted()) == {f"transformer.h.{layer}.mlp.c_fc.weight" for layer in range(2)}
    monkeypatch.setattr(library_model, "saved_tensors", lambda *_: {})
    with pytest.raises(
        ModelError, match=r"^spec\.weightSync\.transport: found adapter, but files of GPT2LMHeadModel hold"
    ):
        model.adapted()


@pytest.mark.parametrize("transport", ["adapter", "objectStore"])
def test_a_family_is_refused_when_adapters_are_added(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch, transport: str
):
    from rl_trainer.model import library_model

    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "learner": {"lora": {"rank": 2, "targetModules": ["c_fc"]}},
            "weightSync": {"transport": transport},
        }
    )
    learner = Learner(gpt2, spec)
    with monkeypatch.context() as patched:
        patched.setattr(library_model, "saved_tensors", lambda *_: {})
        if transport == "adapter":
            with pytest.raises(ModelError, match=r"^spec\.weightSync\.transport: found adapter"):
                learner.start_reinforcement()
        else:
            learner.start_reinforcement()
    if transport == "objectStore":
        assert len(learner.adapted()) == 2
        assert learner.adapted() is learner.adapted(), "worked out once"
