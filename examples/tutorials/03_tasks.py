"""Waiting for a task at once, or later: the same two tasks one after the other, and at the same time.

python examples/tutorials/03_tasks.py
"""

from __future__ import annotations

import random
import time

import numpy as np
import numpy.typing as npt
import ray
from show import Clock, Row, ray_here, table

Matrix = npt.NDArray[np.float32]


@ray.remote
def multiply(one: Matrix, other: Matrix, pauses: list[float]) -> Matrix:
    """A product after each pause, as a stage that computes and waits for others in turns."""
    for pause in pauses:
        result = one @ other
        time.sleep(pause)
    return result


@ray.remote
def add(one: Matrix, other: Matrix, pauses: list[float]) -> Matrix:
    """A sum after each pause."""
    for pause in pauses:
        result = one + other
        time.sleep(pause)
    return result


def main(size: int = 512, rounds: int = 10, longest: float = 0.1) -> list[Row]:
    """Rows: how it was waited, seconds, and seconds over those of the longer task alone."""
    rng, draw = np.random.default_rng(0), random.Random(0)
    # In the store once, not once per call: both tasks and all rounds read the same memory.
    one, other = (ray.put(rng.standard_normal((size, size), dtype=np.float32)) for _ in range(2))
    pauses = [[draw.uniform(0, longest) for _ in range(rounds)] for _ in range(2)]
    ray.get(
        [multiply.remote(one, other, [0.0]), add.remote(one, other, [0.0])], timeout=60
    )  # processes have started

    with Clock() as turns:
        ray.get(multiply.remote(one, other, pauses[0]), timeout=60)  # waits here ...
        ray.get(add.remote(one, other, pauses[1]), timeout=60)  # ... so this one begins afterwards
    with Clock() as together:
        product = multiply.remote(one, other, pauses[0])
        ray.get(add.remote(one, other, pauses[1]), timeout=60)
        ray.get(product, timeout=60)
    longer = max(sum(one) for one in pauses)
    rows = [
        {"waited": name, "seconds": f"{seconds:.2f}", "of the longer one's pauses": f"{seconds / longer:.2f}"}
        for name, seconds in (("for each at once", turns.seconds), ("for both at the end", together.seconds))
    ]
    table(rows, f"A product and a sum, {rounds} rounds each")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
