"""The items of the channel benchmark, and what a consumer does with them. NumPy only: peers import it too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

SIZES = {"200 B": 200, "16 KB": 16_384, "1 MB": 1_048_576}  # bytes of payload
DISTINCT = {"200 B": 512, "16 KB": 256, "1 MB": 64}  # a producer goes through this many different items


def make_items(size: str, seed: int) -> list[dict[str, Any]]:
    """Items with random content: a small record, a trajectory of 512 tokens in six arrays, one large array."""
    rng = np.random.default_rng(seed)
    if size == "200 B":
        return [{"id": index, "data": rng.bytes(160)} for index in range(DISTINCT[size])]
    if size == "16 KB":
        return [
            {
                "tokens": rng.integers(0, 1 << 40, 512),
                "positions": rng.integers(0, 1 << 40, 512),
                "mask": rng.integers(0, 2, 512, dtype=np.int32),
                **{
                    name: rng.random(512, dtype=np.float32) for name in ("logprobs", "reference", "advantage")
                },
            }
            for _ in range(DISTINCT[size])
        ]
    return [{"data": rng.random(SIZES[size] // 4, dtype=np.float32)} for _ in range(DISTINCT[size])]


def touch(items: Iterable[dict[str, Any]]) -> float:
    """Read every byte of every array, as a learner would."""
    total = 0.0
    for item in items:
        for value in item.values():
            if isinstance(value, np.ndarray):
                total += float(value.sum())
            elif isinstance(value, bytes):
                total += value[-1]
    return total


def percentiles(seconds: list[float]) -> dict[str, float]:
    """`p50` and `p99` in milliseconds."""
    if not seconds:
        return {"p50": float("nan"), "p99": float("nan")}
    p50, p99 = np.percentile(np.asarray(seconds) * 1000, [50, 99])
    return {"p50": float(p50), "p99": float(p99)}
