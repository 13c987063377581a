"""How large the accelerators of a pool are, as far as its own fields say. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_api.profile import PoolSpec
from rl_api.sizes.memory import GB

_MEMORY_LABEL = "nvidia.com/gpu.memory"
"""Label of NVIDIA's feature discovery: MiB of one GPU."""
_SIZE = re.compile(r"(?<![0-9])([0-9]{1,4})gb(?![a-z])", re.IGNORECASE)


def accelerator_memory(pool: PoolSpec) -> int | None:
    """Bytes of one accelerator; None: nothing says it.

    Looked at are the name of its resource (`mig-1g.10gb`), the selectors of its class of devices, and the labels by which
    its nodes are chosen (`NVIDIA-H100-80GB-HBM3`, `nvidia.com/gpu.memory`).
    """
    for text in texts(pool):
        if found := _SIZE.search(text):
            return int(found[1]) * GB
    mebibytes = pool.node_selector.get(_MEMORY_LABEL, "")
    return int(mebibytes) * 2**20 if mebibytes.isdecimal() else None


def texts(pool: PoolSpec) -> Iterator[str]:
    """What names a pool's accelerators, the most exact first: a part of a GPU is on nodes whose labels name the whole."""
    yield pool.accelerator_resource or ""
    if pool.device_class is not None:
        yield from (*pool.device_class.selectors, pool.device_class.name)
    yield from (value for key, value in sorted(pool.node_selector.items()) if key.endswith("gpu.product"))
