"""A decoder of 40 tokens and requests to it, for tests of our own engine."""

from __future__ import annotations

import numpy as np
import torch

from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.decoder import Decoder
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams

CONFIG = DecoderConfig(
    model_type="qwen2",
    vocab_size=40,
    hidden_size=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_positions=96,
    qkv_bias=True,
    tied_embeddings=True,
)


def decoder(seed=1, **changes) -> Decoder:
    model = Decoder(DecoderConfig(**{**CONFIG.__dict__, **changes}))
    model.initialize(0.25, seed)
    return model


def prompts(count, seed=0, longest=30, vocab=40):
    generator = np.random.default_rng(seed)
    return [
        generator.integers(2, vocab, generator.integers(1, longest)).astype(np.int32) for _ in range(count)
    ]


def requests(texts, lengths, seed=100, **params):
    return [
        GenerationRequest(index, text, SamplingParams(int(length), **params), seed + index)
        for index, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]


def drain(engine, limit=10_000):
    results = {}
    for _ in range(limit):
        if not (engine.active or engine.waiting):
            return results
        results.update({result.id: result for result in engine.step()})
    raise AssertionError("the engine does not come to an end")


def logprobs_of(model, prompt, tokens, temperature=1.0):
    text = torch.from_numpy(np.concatenate((prompt, tokens)).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(text)[0, len(prompt) - 1 : -1] / temperature
    return (
        torch.log_softmax(logits, -1)
        .gather(1, torch.from_numpy(tokens.astype(np.int64))[:, None])[:, 0]
        .numpy()
    )
