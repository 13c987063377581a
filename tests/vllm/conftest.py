"""Only where vLLM is installed: `make test-vllm` runs this folder in an environment of its own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAS_VLLM = find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_VLLM else ["*.py"]

if HAS_VLLM:
    from collections.abc import Callable
    from pathlib import Path

    from vllm_models import save_model

    @pytest.fixture(scope="session")
    def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
        """`model_folder(name)`: a small random model of a family of `vllm_models.FAMILIES`."""
        made: dict[str, Path] = {}

        def make(name: str) -> Path:
            if name not in made:
                made[name] = tmp_path_factory.mktemp("models") / name
                save_model(name, made[name])
            return made[name]

        return make
