"""The shapes that are measured, and random models of them: nothing is fetched from anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpu_lane.child import progress
from gpu_lane.job import Findings, Job

_QWEN2: Mapping[str, Any] = {
    **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"},
    **{"rms_norm_eps": 1e-6, "rope_theta": 1e6, "use_sliding_window": False, "attention_dropout": 0.0},
    **{"max_position_embeddings": 32_768, "initializer_range": 0.02},
    **{"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0},
}


@dataclass(frozen=True)
class Shape:
    """A model's sizes and the work that it is measured with.

    Attributes:
        name: for people and options.
        config: what `config.json` says.
        prompts: of a step, in groups of `group`.
        group: completions of one prompt.
        prompt: tokens of a prompt.
        longest: tokens of a completion at most; sampled ones are all so long but for the odd end token.
        micro_batch: tokens of one pass of the learner.
        levels: sequences in flight for which decoding is measured.
        steps: repetitions that are timed, after one that is not.
        checkpointing: of activations.
        vllm_share: of a GPU's memory that vLLM takes where a learner is on the same GPU.
        lora: beside engines, and in TRL, low-rank adapters learn: all weights do not fit one GPU.
        attention: (rows, tokens of each) of the attention that is timed.
        matrix: rows and columns of the bare matrix product.
    """

    name: str
    config: Mapping[str, Any]
    prompts: int
    group: int
    prompt: int
    longest: int
    micro_batch: int
    levels: tuple[int, ...]
    steps: int
    checkpointing: bool
    vllm_share: float
    lora: bool
    attention: tuple[int, int]
    matrix: int


_TINY = {
    **{"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 98, "max_position_embeddings": 256},
    **{"tie_word_embeddings": True, "initializer_range": 0.05},
}
_HALF = {
    **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    **{"num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True},
}
_SEVEN = {
    **{"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28},
    **{"num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False},
}
SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape(
            "tiny",
            {**_QWEN2, **_TINY},
            prompts=4,
            group=4,
            prompt=16,
            longest=24,
            micro_batch=256,
            levels=(1, 8),
            steps=2,
            checkpointing=False,
            vllm_share=0.2,
            lora=False,
            attention=(2, 64),
            matrix=256,
        ),
        Shape(
            "0.5b",
            {**_QWEN2, **_HALF},
            prompts=16,
            group=8,
            prompt=128,
            longest=512,
            micro_batch=16_384,
            levels=(1, 64, 256),
            steps=4,
            checkpointing=False,
            vllm_share=0.4,
            lora=False,
            attention=(4, 4096),
            matrix=8192,
        ),
        Shape(
            "7b",
            {**_QWEN2, **_SEVEN},
            prompts=8,
            group=8,
            prompt=128,
            longest=512,
            micro_batch=8192,
            levels=(1, 64, 128),
            steps=3,
            checkpointing=True,
            vllm_share=0.3,
            lora=True,
            attention=(2, 4096),
            matrix=8192,
        ),
    )
}


def measure(job: Job) -> Findings:
    """Writes the model folder; a row says how large it is and how long it took."""
    start = time.perf_counter()
    size = write_model(job)
    seconds = time.perf_counter() - start
    row = {"model": job.shape, "parameters": size // 2, "GB": size / 1e9, "s": seconds}
    return Findings([row])


def write_model(job: Job, seed: int = 0) -> int:
    """A Hugging Face folder with random weights in bfloat16; returns their bytes.

    Tensors are made one at a time, on the device; the character tokenizer of the preset `tiny` is filled up to the
    vocabulary with tokens that no text gives.
    """
    import torch

    from rl_trainer.model.config import parse_config
    from rl_trainer.model.export import appearing
    from rl_trainer.model.folder import write_weights
    from rl_trainer.model.names import parts
    from rl_trainer.model.presets import tiny_tokenizer
    from rl_trainer.model.tiny import EOS, PAD
    from rl_trainer.weights.source import LazyTensor, source_of

    shape = SHAPES[job.shape]
    config = {**shape.config, "dtype": "bfloat16"}
    std = float(config["initializer_range"])
    generator = torch.Generator(job.device).manual_seed(seed)

    def make(name: str, size: tuple[int, ...]) -> torch.Tensor:
        options: dict[str, Any] = {"dtype": torch.bfloat16, "device": job.device}
        if name.endswith("norm.weight"):
            return torch.ones(size, **options)
        if name.endswith("bias"):
            return torch.zeros(size, **options)
        return torch.randn(size, generator=generator, **options) * std

    source = source_of(
        {
            part.name: LazyTensor(torch.bfloat16, part.shape, partial(make, part.name, part.shape))
            for part in parts(parse_config(config))
        }
    )
    size = sum(source.sizes().values())
    progress(f"writing {size / 1e9:.2f} GB of random weights")
    tokenizer = tiny_tokenizer()
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    for index in range(len(vocabulary), int(config["vocab_size"])):
        vocabulary[f"t{index}"] = index
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": 1, "pad_token_id": 0, "do_sample": True},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": EOS,
            "pad_token": PAD,
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
        },
    }
    with appearing(job.model) as temporary:
        for name, value in files.items():
            (temporary / name).write_text(json.dumps(value) + "\n", encoding="utf-8")
        write_weights(source, temporary)
    return size


def context(shape: Shape) -> int:
    """Tokens of the longest sequence that is sampled, rounded up to what engines keep in one block."""
    return min(int(shape.config["max_position_embeddings"]), -(-(shape.prompt + shape.longest) // 128) * 128)
