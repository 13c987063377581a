"""`peer_loop.serve` for a script that runs as several ranks: what rank 0 is asked for, all of them do.

Started by torchrun or `accelerate launch` (they set RANK and WORLD_SIZE); alone, a script is rank 0 of 1. `prepare` sets the
process group up. No import from this project: it also runs in peers' environments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from peer_loop import serve

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve_ranks(prepare: Callable[[], Handler]) -> None:
    """Serve as rank 0, or follow it."""
    if RANK == 0:
        serve(lambda: _announcing(prepare()))
        return
    import torch.distributed as dist

    handler = prepare()
    while True:
        request: list[Any] = [None]
        dist.broadcast_object_list(request, 0)
        handler(request[0])


def _announcing(handler: Handler) -> Handler:
    if RANKS == 1:
        return handler
    import torch.distributed as dist

    def run(request: dict[str, Any]) -> dict[str, Any]:
        dist.broadcast_object_list([request], 0)
        return handler(request)

    return run


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until all ranks have done their work, begun together; and what came of it here."""
    meet()
    start = time.perf_counter()
    result = work()
    meet()
    return time.perf_counter() - start, result


def meet() -> None:
    """Wait for the other ranks."""
    if RANKS > 1:
        import torch.distributed as dist

        dist.barrier()
