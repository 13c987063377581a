"""Which engine runs a model folder: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from rl_trainer.model.config import is_supported
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.library import LibraryEngine
from rl_trainer.rollout.engines.torch import TorchEngine
from rl_trainer.rollout.engines.vllm import VllmEngine

EngineKind = Literal["torch", "vllm"]


def create_engine(
    folder: str | Path,
    *,
    slots: int,
    kind: EngineKind = "torch",
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    max_length: int | None = None,
    cuts: bool = False,
) -> Engine:
    """Open an engine for a model folder: `vllm`, or `torch`, our own decode loop (the library's for families that our
    decoder does not run).

    `max_length` bounds prompt plus completion, in tokens; the model's own context bounds it too. `cuts`: whether
    sampled requests have a top_p or top_k, for which vLLM is set up differently (`vllm_needs.check_sampling`).
    Raises ModelError when the folder cannot be loaded, InvalidConfig when vLLM cannot run here.
    """
    engine: Callable[..., Engine]
    if kind == "vllm":
        engine = partial(VllmEngine.open, cuts=cuts)
    elif is_supported(Path(folder)):
        engine = TorchEngine.open
    else:
        engine = LibraryEngine.open
    return engine(folder, slots=slots, dtype=dtype, device=device, max_length=max_length)
