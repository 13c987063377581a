"""The bare matrix products of a piece of work: what they would take with nothing between them.

`Products` notes the products that run within it, forward and backward, by their operands' shapes and strides; `seconds` runs
the same ones in the same order on numbers of no meaning that are in memory already. So `seconds` over the time of the work
itself is its share of the limit.

Attention by a fused kernel counts as the two products of its forward pass and the four of its backward pass over half of the
keys, as it is causal. Sums of value rows weighted by probabilities (`embedding_bag`), the second product of attention in
decoding, count as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

Layout = tuple[tuple[int, ...], tuple[int, ...]]


class Products(TorchDispatchMode):
    """Notes the products that run within `with Products() as products`."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], object]] = []
        self._numbers: dict[object, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm"):
            self._product(_layout(args[0]), _layout(args[1]))
        elif name in ("addmm", "addmm_", "baddbmm"):
            self._product(_layout(args[1]), _layout(args[2]))
        elif name == "linear":
            self._product(_layout(args[0].flatten(0, -2)), _layout(args[1].t()))
        elif name in ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"):
            self._attention(args[0], passes=1)
        elif name == "_scaled_dot_product_flash_attention_for_cpu_backward":
            self._attention(args[1], passes=2)
        elif name in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"):
            self._bag(*args[:3])
        return func(*args, **(kwargs or {}))

    def __len__(self) -> int:
        return len(self._calls)

    def seconds(self, repetitions: int = 3) -> list[float]:
        """What the products take, each time; a first time, which warms up, is not counted."""
        found = []
        with torch.inference_mode():
            for _ in range(repetitions + 1):
                start = time.perf_counter()
                for call in self._calls:
                    call()
                found.append(time.perf_counter() - start)
        return found[1:]

    def _product(self, left: Layout, right: Layout) -> None:
        a, b = self._made("left", left), self._made("right", right)
        shape = (*left[0][:-1], right[0][-1])
        out = self._made("out", (shape, _strides(shape)))
        product = torch.mm if len(shape) == 2 else torch.bmm
        self._calls.append(lambda: product(a, b, out=out))

    def _attention(self, query: torch.Tensor, passes: int) -> None:
        batch, heads, length, width = query.shape
        keys = (length + 1) // 2
        for _ in range(passes):
            self._product(*map(_plain, ((batch * heads, length, width), (batch * heads, width, keys))))
            self._product(*map(_plain, ((batch * heads, length, keys), (batch * heads, keys, width))))

    def _bag(self, table: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor) -> None:
        numbers = self._made("table", _layout(table))
        weights = self._made("weights", _plain((len(rows),)))
        self._calls.append(
            lambda: F.embedding_bag(rows, numbers, starts, mode="sum", per_sample_weights=weights)
        )

    def _made(self, role: str, layout: Layout) -> torch.Tensor:
        key = (role, layout)
        if key not in self._numbers:
            with torch.inference_mode(False):
                self._numbers[key] = torch.empty_strided(*layout).normal_(std=0.1)
        return self._numbers[key]


def _layout(tensor: torch.Tensor) -> Layout:
    if 0 in tensor.stride():  # one number for many places, which products copy out
        return _plain(tuple(tensor.shape))
    return tuple(tensor.shape), tuple(tensor.stride())


def _plain(shape: tuple[int, ...]) -> Layout:
    return shape, _strides(shape)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)
