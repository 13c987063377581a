"""From a local Hugging Face folder to a model."""

from __future__ import annotations

from pathlib import Path

import torch

from rl_trainer.model.config import UnsupportedModelError, read_config
from rl_trainer.model.decoder import Decoder, load_decoder
from rl_trainer.model.library_model import LibraryModel


def load_model(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Decoder | LibraryModel:
    """Open a folder for learning: our decoder, or for other families the library's model, which has the same methods."""
    try:
        return load_decoder(folder, dtype, device)
    except UnsupportedModelError:
        return LibraryModel.open(folder, dtype, device)


def empty_model(folder: str | Path) -> Decoder | LibraryModel:
    """The model of a folder whose parameters, fp32, have no memory yet: they are on torch's device `meta`.

    Raises ModelError as `load_model`, as far as that can be told without the weights.
    """
    try:
        return Decoder(read_config(folder), device="meta")
    except UnsupportedModelError:
        return LibraryModel.empty(folder)
