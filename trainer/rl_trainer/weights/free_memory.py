"""Main memory that this process may still take, before the kernel or Ray ends it."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# Ray ends workers where less than one part in so many is free (RAY_memory_usage_threshold is 0.95).
_KEPT = 20
# Bytes that stay free beside a copy of the weights, for keys, values and what others of this machine or pod need.
MARGIN = 256 << 20


def free_memory(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Bytes: of the machine, and of every control group (version 2) around this process that has a limit, the fewest.

    What a group keeps of files that nobody reads now is free, as Kubernetes counts it. In a container the group's own files
    are at the root. Groups of version 1 are not looked at.
    """
    machine = psutil.virtual_memory()
    found: list[int] = [machine.available - machine.total // _KEPT]
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    path = next((line[3:] for line in lines if line.startswith("0::/")), "/")
    folder = groups / path.strip("/")
    while folder.is_relative_to(groups):
        if (free := _free_in_group(folder)) is not None:
            found.append(free)
        if folder == groups:
            break
        folder = folder.parent
    return max(0, min(found))


def _free_in_group(folder: Path) -> int | None:
    """Of one group; None where it has no limit, or is none."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return None
    if limit == "max":
        return None
    idle = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return int(limit) - int(limit) // _KEPT - max(0, used - idle)
