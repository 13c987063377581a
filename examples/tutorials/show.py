"""What each tutorial needs beside its subject: Ray without its chatter, a clock, and a table."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Read when Ray is imported: a task that asks for no GPU leaves what CUDA_VISIBLE_DEVICES says alone.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

Row = dict[str, Any]


@contextmanager
def ray_here(cpus: int = 4, *, log_to_driver: bool = False) -> Iterator[None]:
    """Ray for the time of a `with`; one that this process uses already is used and left running.

    Where RAY_ADDRESS names a cluster, as in a RayJob, it is that cluster, with the CPUs that it has; elsewhere a Ray of its
    own with room for `cpus` tasks of one CPU. `log_to_driver`: whether what actors print is shown.
    """
    import ray

    own = not ray.is_initialized()
    if own:
        # "local" would start another one beside the cluster too, and its nodes would stand idle. Without an address Ray
        # joins whichever runs on this machine.
        elsewhere = bool(os.environ.get("RAY_ADDRESS"))
        where: Row = {} if elsewhere else {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        ray.init(**where, log_to_driver=log_to_driver, logging_level="ERROR")
    try:
        yield
    finally:
        if own:
            ray.shutdown()


class Clock:
    """`with Clock() as clock: ...`; afterwards `clock.seconds` is how long it took."""

    seconds = 0.0

    def __enter__(self) -> Clock:
        self._since = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._since


def table(rows: Sequence[Row], title: str = "") -> None:
    """Prints `rows`, which all have the same keys, with these as heads of the columns."""
    heads = list(rows[0])
    lines = [heads, *([str(row[head]) for head in heads] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    if title:
        print(f"\n{title}")
    for number, line in enumerate(lines):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
