"""Small random models that the Hugging Face library itself writes, for the tests of several folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


def save_random_model(folder: Path, family: str, config: Mapping[str, object]) -> None:
    """Write a model of a family, such as `Qwen2`, every parameter random; no tokenizer."""
    import torch
    import transformers

    torch.manual_seed(7)
    transformers.utils.logging.disable_progress_bar()
    made = getattr(transformers, f"{family}Config")(**config)
    model = transformers.AutoModelForCausalLM.from_config(made)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name or "ln_" in name else 0.0, 0.15)
    model.save_pretrained(folder)


def save_family_model(
    name: str,
    folder: Path,
    families: Mapping[str, tuple[str, Mapping[str, object]]],
    sizes: Mapping[str, object],
    gpt2: Mapping[str, object],
) -> None:
    """Write a model of `families` (name -> the library's family, and what it has beside `sizes`), or a `gpt2`."""
    if name == "gpt2":
        save_random_model(folder, "GPT2", gpt2)
    else:
        family, extra = families[name]
        save_random_model(folder, family, {**sizes, **extra})


def made_once(
    tmp_path_factory: pytest.TempPathFactory, save: Callable[[str, Path], None]
) -> Callable[[str], Path]:
    """`make(name)`: the folder that `save` wrote for a name, once for all tests."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("models") / name
            save(name, made[name])
        return made[name]

    return make
