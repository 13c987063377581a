"""The preset `tiny`: a small random Qwen2 model with a character tokenizer, as a real Hugging Face folder.

It learns small tasks within a minute on two CPU cores, and every other tool opens it like any model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from rl_api.run import TinyModelSpec
from rl_trainer.model.config import parse_config
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.export import WEIGHTS, appearing
from rl_trainer.model.tiny import CHARACTERS, EOS, INIT_STD, PAD, tiny_config
from rl_trainer.model.tokenizer import byte_letter


def write_tiny(target: str | Path, shape: TinyModelSpec | None = None, seed: int = 0) -> Path:
    """Write the preset into `target`, which must not exist; it appears complete or not at all.

    The same shape and seed give the same bytes. Returns `target`.
    """
    target = Path(target)
    shape = shape or TinyModelSpec()
    config = tiny_config(shape)
    model = Decoder(parse_config(config))
    model.initialize(INIT_STD, seed)
    with appearing(target) as temporary:
        for name, value in {
            "config.json": config,
            "generation_config.json": {"eos_token_id": 1, "pad_token_id": 0, "do_sample": True},
            "tokenizer.json": tiny_tokenizer(),
            "tokenizer_config.json": {
                "tokenizer_class": "Qwen2Tokenizer",
                "eos_token": EOS,
                "pad_token": PAD,
                "unk_token": None,
                "clean_up_tokenization_spaces": False,
                "model_max_length": shape.max_positions,
            },
        }.items():
            (temporary / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        tensors = {name: value.contiguous() for name, value in model.hf_state_dict().items()}
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
    return target


def tiny_tokenizer() -> dict[str, Any]:
    """The preset's `tokenizer.json`: one token per character, text comes back exactly.

    A byte-level BPE without merges, as every Qwen2 tokenizer is a byte-level BPE: the library insists on that
    for this model type. Byte-level alphabets spell a space and a newline with printable stand-ins.
    """
    vocabulary = {PAD: 0, EOS: 1}
    for index, character in enumerate(CHARACTERS, start=2):
        vocabulary[byte_letter(ord(character))] = index
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": PAD, **special}, {"id": 1, "content": EOS, **special}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def main() -> None:
    """For who has no torch: writes the preset as the process's arguments say, folder, sizes (JSON) and seed."""
    folder, sizes, seed = sys.argv[1:]
    write_tiny(folder, TinyModelSpec.model_validate_json(sizes), int(seed))
