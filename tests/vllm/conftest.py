"""Only where vLLM is installed: `make test-vllm` runs this folder in an environment of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl_trainer.rollout.engines.vllm_needs import is_installed

HAS_VLLM = is_installed()
collect_ignore_glob = [] if HAS_VLLM else ["*.py"]

if HAS_VLLM:
    # Servers and clients are those of the tests of our own engine.
    sys.path.append(str(Path(__file__).parents[1] / "integration"))

    from collections.abc import Callable

    from library_models import made_once
    from vllm_models import save_model

    @pytest.fixture(scope="session")
    def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
        """`model_folder(name)`: a small random model of a family of `vllm_models.FAMILIES`."""
        return made_once(tmp_path_factory, save_model)
