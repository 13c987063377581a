"""The fallback engine means the same by every parameter as the PyTorch engine does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_api.errors import ModelError, TaskError
from rl_trainer.model.library_model import LibraryModel
from rl_trainer.model.loader import load_model
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.library import LibraryEngine


def work(count=9, **params):
    generator = np.random.default_rng(0)
    texts = [generator.integers(2, 61, generator.integers(1, 20)).astype(np.int32) for _ in range(count)]
    return [
        GenerationRequest(index, text, SamplingParams(4 + 2 * index, **params), seed=index)
        for index, text in enumerate(texts)
    ]


def drain(engine):
    results = {}
    while engine.waiting or engine.active:
        results.update({result.id: result for result in engine.step()})
    return results


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "stop_token_ids": frozenset({5, 6, 7, 8})},
        {"top_k": 10, "top_p": 0.9},
        {"top_p": 0.9, "top_logprobs": 4},
    ],
)
def test_same_results_as_the_torch_engine(params, family_folder):
    folder = family_folder("qwen2-tied")
    first, second = LibraryEngine(LibraryModel.open(folder), slots=4), create_engine(folder, slots=4)
    for engine in (first, second):
        engine.add(work(**params))
    found, expected = drain(first), drain(second)
    assert found.keys() == expected.keys()
    for index, result in found.items():
        assert result.tokens.tolist() == expected[index].tokens.tolist()
        np.testing.assert_allclose(result.logprobs, expected[index].logprobs, atol=2e-5)
        assert (
            len(result.top) == len(expected[index].top) == (4 + 2 * index if "top_logprobs" in params else 0)
        )
        for mine, other in zip(result.top, expected[index].top, strict=True):
            np.testing.assert_allclose(mine, other, atol=2e-5)
        assert (result.finish_reason, result.tokens.dtype) == (expected[index].finish_reason, np.int32)
        assert result.versions.tolist() == [0] * len(result.tokens)


def test_it_goes_on_where_another_engine_was_interrupted(family_folder):
    folder = family_folder("qwen2-tied")
    whole, first = create_engine(folder, slots=9), create_engine(folder, slots=9)
    for engine in (whole, first):
        engine.add(work())
    for _ in range(3):
        assert not first.step()
    begun = first.interrupt([request.id for request in work()])
    second = LibraryEngine(LibraryModel.open(folder), slots=5)
    for request, found in zip(work(), begun, strict=True):
        params = replace(request.params, max_new_tokens=request.params.max_new_tokens - 3)
        prompt = np.concatenate((request.prompt, found.tokens))
        second.add([replace(request, prompt=prompt, params=params, drawn=3)])
    rest = drain(second)
    for key, result in drain(whole).items():
        assert [*begun[key].tokens, *rest[key].tokens] == result.tokens.tolist()
    second.add(work())
    assert second.interrupt([0, 1]) == []
    assert second.waiting == 7, "what it has begun it has ended"


def test_another_family(family_folder):
    folder = family_folder("gpt2")
    engine = create_engine(folder, slots=4)
    assert isinstance(engine, LibraryEngine)
    engine.add(work(temperature=0.0))
    assert (engine.slots, engine.active, engine.waiting) == (4, 0, 9)
    assert len(engine.step()) == 4
    assert engine.waiting == 5
    model = load_model(folder)
    for index, result in drain(engine).items():
        text = np.concatenate((work()[index].prompt, result.tokens)).astype(np.int64)
        with torch.no_grad():
            logits = model(torch.from_numpy(text)[None])[0, -len(result.tokens) - 1 : -1]
        assert logits.argmax(-1).tolist() == result.tokens.tolist()
        np.testing.assert_allclose(result.logprobs, torch.log_softmax(logits, -1).amax(-1), atol=1e-5)


def test_weights_versions_abort_and_bounds(family_folder):
    folder = family_folder("gpt2")
    engine = create_engine(folder, slots=8)
    engine.context = 24
    other = {name: value * 1.5 for name, value in load_model(folder).hf_state_dict().items()}
    engine.load_weights(other, 3)
    engine.add(work())
    engine.abort([0, 2, "unknown"])
    found = drain(engine)
    assert sorted(found) == [1, 3, 4, 5, 6, 7, 8]
    for index, result in found.items():
        assert set(result.versions.tolist()) == {3}
        assert len(result.tokens) == min(4 + 2 * index, 24 - len(work()[index].prompt))
    assert engine.step() == []
    with pytest.raises(TaskError, match="the context holds 24"):
        engine.add([GenerationRequest(0, np.full(24, 3, np.int32), SamplingParams(1))])
    with pytest.raises(ModelError, match="weights of version 4: tensor"):
        engine.load_weights({}, 4)
    assert engine.version == 3
    with pytest.raises(ValueError, match="slots is 0"):
        create_engine(folder, slots=0)
