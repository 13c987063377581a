"""The most probable tokens that the PyTorch engine tells, against a plain forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_trainer.model.decoder import load_decoder
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.torch import TorchEngine


def top_logprobs_of(model, request, tokens):
    """By one forward pass: at each place the most probable tokens among all."""
    text = torch.from_numpy(np.concatenate((request.prompt, tokens)).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(text)[0, len(request.prompt) - 1 : -1]
    found = torch.log_softmax(logits / (request.params.temperature or 1.0), -1)
    return found.topk(request.params.top_logprobs)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.6, "top_p": 0.7}], ids=str)
def test_the_most_probable_tokens_at_each_place(params, family_folder):
    """Of those that ask, whoever shares the batch, also where slots are moved."""
    model = load_decoder(family_folder("qwen2-tied"))
    engine = TorchEngine(model, slots=3)
    generator = np.random.default_rng(0)
    texts = [generator.integers(2, 61, generator.integers(1, 30)).astype(np.int32) for _ in range(7)]
    counts = [0, 3, 0, 20, 1, 0, 5]
    lengths = [12, 5, 3, 9, 7, 2, 8]
    work = [
        GenerationRequest(index, text, SamplingParams(length, top_logprobs=count, **params), index)
        for index, (text, length, count) in enumerate(zip(texts, lengths, counts, strict=True))
    ]
    engine.add(work)
    results, told = {}, {index: [] for index in range(7)}
    while engine.active or engine.waiting:
        for result in engine.step():
            results[result.id] = result
            told[result.id] += result.top[len(told[result.id]) :]
        for new in engine.progress({index: len(tops) for index, tops in told.items() if counts[index]}):
            assert len(new.top) == len(new.tokens)
            told[new.id] += new.top
    for index, result in results.items():
        assert told[index] == list(result.top)
        if not counts[index]:
            assert list(result.top) == []
            continue
        assert [len(top) for top in result.top] == [counts[index]] * lengths[index]
        wanted = top_logprobs_of(model, work[index], result.tokens)
        assert [[token for token, _ in top] for top in result.top] == wanted.indices.tolist()
        np.testing.assert_allclose(
            [[value for _, value in top] for top in result.top], wanted.values.numpy(), atol=2e-5
        )
    engine.add([work[1]])
    engine.step()
    engine.abort([1])
    assert engine._top == {}, "nothing is kept of who has gone"
