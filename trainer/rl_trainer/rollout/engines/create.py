"""Which engine runs a model folder: the one place that knows them all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from rl_trainer.model.decoder import Decoder
from rl_trainer.model.loader import load_model
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.endpoint import EndpointEngine
from rl_trainer.rollout.engines.endpoint_requests import EndpointOptions
from rl_trainer.rollout.engines.library import LibraryEngine
from rl_trainer.rollout.engines.torch import TorchEngine
from rl_trainer.rollout.engines.vllm import VllmEngine
from rl_trainer.rollout.engines.vllm_needs import ONE_DEVICE, EngineKind, VllmOptions


def create_engine(
    folder: Path,
    *,
    slots: int,
    kind: EngineKind | Literal["endpoint"] = "torch",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    options: VllmOptions = ONE_DEVICE,
    endpoint: EndpointOptions | None = None,
) -> Engine:
    """Open an engine for a model folder: `vllm`, or `torch`, our own decode loop (the library's for families that our
    decoder does not run), or `endpoint`, a server outside.

    `options`: of vLLM; `endpoint`: of the server. Raises ModelError when the folder cannot be loaded, InvalidConfig when
    vLLM cannot run here; for a server see `EndpointEngine.open`.
    """
    if kind == "endpoint":
        assert endpoint is not None, "the rules ask for one"
        return EndpointEngine.open(folder, slots=slots, options=endpoint)
    if kind == "vllm":
        return VllmEngine.open(folder, slots=slots, dtype=dtype, device=device, options=options)
    model = load_model(folder, dtype, device)
    return TorchEngine(model, slots) if isinstance(model, Decoder) else LibraryEngine(model, slots)
