"""Named tensors that are made one at a time: what learners publish, export and keep in checkpoints.

No process ever holds all of them at once, so that what travels and what is written costs no more memory than one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorSource:
    """Tensors by name, made while they are iterated.

    With several learner ranks all of them iterate a source together, each item once and to the end: making one may be a
    collective. Values are used on rank 0 alone; on others an item may be anything of that name.

    Attributes:
        shapes: dtype and shape by name; on every rank the same, in the same order.
        items: name and tensor, on any device, contiguous or not, in the order of `shapes`. A tensor may share memory with
            the model: it is to be copied before the next item is asked for, and never written to.
    """

    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    items: Callable[[], Iterator[tuple[str, Tensor]]]

    def sizes(self) -> dict[str, int]:
        """Bytes by name."""
        return {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in self.shapes.items()}
