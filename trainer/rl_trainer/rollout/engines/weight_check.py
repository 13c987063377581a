"""Whether weights that arrive are those of the model that an engine has opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rl_trainer.model.config import is_supported, read_config
from rl_trainer.model.folder import read_shapes
from rl_trainer.model.names import check_same, check_shapes

Check = Callable[[Mapping[str, tuple[int, ...]], str], None]
"""Raises ModelError for weights that are not the model's, by their shapes; the text names them."""


def check_of(folder: Path, tied: bool) -> Check:
    """What refuses weights that are not those of the model in `folder`; `tied`: its output head is its embeddings."""
    if is_supported(folder):
        return partial(check_shapes, read_config(folder))
    shapes = read_shapes(folder)
    if tied:
        shapes.pop("lm_head.weight", None)
    return partial(check_same, shapes)
