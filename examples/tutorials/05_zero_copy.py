"""Zero-copy arrays: how often a large value exists on a machine, and what the object store holds.

python examples/tutorials/05_zero_copy.py
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np
import ray
import torch
from show import Clock, Row, ray_here, table


def own_megabytes() -> float:
    """Memory of this process that it shares with nobody, in MB."""
    with open(f"/proc/{os.getpid()}/smaps_rollup") as lines:
        fields = dict(line.split(":", 1) for line in lines if line.rstrip().endswith("kB"))
    return sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) / 1e3


def store_megabytes() -> float:
    """What is in the shared memory of this machine, where Ray's object store lies."""
    return shutil.disk_usage("/dev/shm").used / 1e6


@ray.remote
class Reader:
    """Another process on this machine."""

    def read(self, references: list[Any]) -> tuple[float, float, bool]:
        """Seconds of the `get`, MB that this process has more of its own then, and whether it may write to them."""
        before = own_megabytes()
        with Clock() as clock:
            [value] = ray.get(references, timeout=60)
        taken = own_megabytes() - before
        writable = value.numpy().flags.writeable if isinstance(value, torch.Tensor) else value.flags.writeable
        return clock.seconds, taken, bool(writable)


def main(megabytes: int = 100) -> list[Row]:
    """Rows: what was put, milliseconds of put and get, and what a reader's process has of its own afterwards."""
    array = np.ones(megabytes * 250_000, np.float32)
    rows, kept = [], []
    for name, value in (("numpy array", array), ("torch tensor", torch.from_numpy(array.copy()))):
        before = store_megabytes()
        with Clock() as put:
            reference = ray.put(value)  # the one copy: into memory that all processes of this machine map
        kept.append(reference)
        readers = [Reader.remote() for _ in range(2)]
        ray.get([reader.__ray_ready__.remote() for reader in readers], timeout=60)
        # In a list: a reference that is an argument by itself is read before the method begins.
        found = ray.get([reader.read.remote([reference]) for reader in readers], timeout=60)
        held = store_megabytes() - before  # once, whoever reads it
        rows.append(
            {
                "value": name,
                "put, ms": f"{put.seconds * 1e3:.1f}",
                "get, ms": f"{max(seconds for seconds, _, _ in found) * 1e3:.1f}",
                "object store, MB": f"{held:.0f}",
                "a reader's own memory, MB": f"{max(taken for _, taken, _ in found):.0f}",
                "readers may write": "yes, each to its copy" if found[0][2] else "no, all see the same",
            }
        )
        for reader in readers:
            ray.kill(reader)
    table(rows, f"{megabytes} MB, read by two other processes")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
