"""Small random models in shapes that vLLM's attention for CPUs takes, work for an engine, and what it should find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from library_models import save_family_model

from rl_trainer.model.decoder import Decoder
from rl_trainer.rollout.engines.base import Engine, GenerationRequest, GenerationResult, SamplingParams
from rl_trainer.rollout.engines.sampling import BatchSampling, distribution

VOCAB, CONTEXT, EOS = 61, 256, 1
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_positions": CONTEXT,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "eos_token_id": EOS,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False}),
    "qwen3-tied": ("Qwen3", {"tie_word_embeddings": True}),
}


def save_model(name: str, folder: Path) -> None:
    """Write a model of a family, or a `gpt2`, which our decoder does not run."""
    save_family_model(name, folder, FAMILIES, SIZES, GPT2)


def changed(weights: dict[str, torch.Tensor], seed: int = 3) -> dict[str, torch.Tensor]:
    """Other weights of the same model."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in weights.items()
    }


def prompts(count: int, longest: int = 30, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, count)
    return [generator.integers(2, VOCAB, length).astype(np.int32) for length in lengths]


def requests(
    texts: Sequence[np.ndarray], length: int, seed: int = 100, **params: Any
) -> list[GenerationRequest]:
    """One request for each text, named by its place."""
    return [
        GenerationRequest(place, text, SamplingParams(length, **params), seed + place)
        for place, text in enumerate(texts)
    ]


def drain(engine: Engine, limit: int = 10_000) -> dict[Any, GenerationResult]:
    """All results by id, with `slots` kept at every step."""
    results = {}
    for _ in range(limit):
        if not (engine.active or engine.waiting):
            return results
        results.update({result.id: result for result in engine.step()})
        assert engine.active <= engine.slots
    raise AssertionError("the engine does not come to an end")


def exact_logprobs(model: Decoder, request: GenerationRequest, tokens: np.ndarray) -> np.ndarray:
    """Of tokens that were sampled for a request, by one forward pass of our decoder and our own definition; all of them
    must be among those that top-k and top-p leave."""
    params = request.params
    text = torch.from_numpy(np.concatenate((request.prompt, tokens)).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(text)[0, len(request.prompt) - 1 : -1]
    count = len(tokens)
    chosen = torch.from_numpy(tokens.astype(np.int64))[:, None]
    cut, whole = (
        distribution(
            logits,
            BatchSampling.of(
                np.full(count, params.temperature, np.float32),
                np.full(count, top_k, np.int64),
                np.full(count, top_p, np.float32),
                VOCAB,
                torch.device("cpu"),
            ),
        ).gather(1, chosen)
        for top_k, top_p in ((params.top_k, params.top_p), (0, 1.0))
    )
    assert params.temperature == 0 or bool((cut > 0).all())
    found: np.ndarray = whole.log().squeeze(1).numpy()
    return found
