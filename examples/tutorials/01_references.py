"""Remote functions and references: ten tensors are reduced by other processes, on a GPU if there is one.

python examples/tutorials/01_references.py
"""

from __future__ import annotations

import ray
import torch
from show import Clock, Row, ray_here, table


@ray.remote
def sum_and_max(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on the CPU again: the object store is memory of the host, and a reference may be read anywhere."""
    there = values.to(device)  # `to` returns the copy: `values` itself stays where it is
    return there.sum().cpu(), there.max().cpu()


@ray.remote
def add(one: float, other: float) -> float:
    """References among the arguments arrive as their values."""
    return one + other


def main() -> list[Row]:
    """Rows: what was done, what came back, and after how long."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = sum_and_max.options(num_gpus=0.5 if device == "cuda" else 0)  # two such tasks share one GPU
    values = torch.randn(10, 3, 4, generator=torch.Generator().manual_seed(0))

    with Clock() as asking:
        references = [on_gpu.remote(one, device) for one in values]
    with Clock() as waiting:
        results = ray.get(references, timeout=60)
    assert all(
        bool(torch.isclose(total, one.sum())) and largest == one.max()
        for (total, largest), one in zip(results, values, strict=True)
    )

    with Clock() as chained:
        # Nothing comes back here in between: the reference goes from one task to the next.
        total = add.remote(add.remote(1, 2), add.remote(3, 4))
        ten = ray.get(total, timeout=60)

    rows = [
        {
            "what": "remote() ten times",
            "back": type(references[0]).__name__,
            "ms": f"{asking.seconds * 1e3:.1f}",
        },
        {"what": "get() of the ten", "back": "sums and maxima", "ms": f"{waiting.seconds * 1e3:.1f}"},
        {"what": "a tree of three tasks", "back": str(ten), "ms": f"{chained.seconds * 1e3:.1f}"},
    ]
    table(rows, f"Ten tensors on {device}")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
