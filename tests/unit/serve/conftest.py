"""What tests of serving share."""

from __future__ import annotations

from pathlib import Path

import pytest
from generators import SHAPE

from rl_trainer.model.presets import write_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("generation") / "model", SHAPE, seed=1)
