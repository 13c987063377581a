"""Memory of log-probs through the output head, behind `peer_loop`: worker_head.py TOKENS HIDDEN.

A request names a vocabulary and a path; the answer is by how much the resident memory of the process rose above what inputs
and their gradients take, at its highest, in one forward and backward pass, and the seconds of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer_loop import serve


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import torch
    from torch import Tensor

    from rl_trainer.algorithms.token_log_probs import head_token_log_probs

    torch.set_num_threads(1)
    tokens, width = int(sys.argv[1]), int(sys.argv[2])

    def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        log_probs = torch.log_softmax(hidden @ weight.T, dim=-1)
        return log_probs.gather(1, targets.unsqueeze(1)).squeeze(1)

    def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return head_token_log_probs(hidden, weight, targets)[0]

    paths = {"plain": plain, "chunked": chunked}

    def run(request: dict[str, Any]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(tokens, width, generator=generator, requires_grad=True)
        weight = torch.randn(request["vocabulary"], width, generator=generator, requires_grad=True)
        targets = torch.randint(0, request["vocabulary"], (tokens,), generator=generator)
        hidden.grad, weight.grad = torch.ones_like(hidden).zero_(), torch.ones_like(weight).zero_()
        before = start_high_water()
        start = time.perf_counter()
        log_probs = paths[request["path"]](hidden, weight, targets)
        log_probs.mean().backward()
        seconds = time.perf_counter() - start
        return {
            "bytes": resident("VmHWM") - before,
            "seconds": seconds,
            "mean": float(log_probs.detach().double().mean()),
            "gradient": float(hidden.grad.double().norm()),
        }

    run({"vocabulary": 1024, "path": "plain"})  # libraries allocate buffers of their own at the first product
    return run


def start_high_water() -> int:
    """Starts VmHWM anew; returns what is resident now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def resident(name: str, process: Path = Path("/proc/self")) -> int:
    """VmRSS (now) or VmHWM (highest) of a process, by itself of this one, in bytes."""
    for line in (process / "status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{process / 'status'} has no {name}")


if __name__ == "__main__":
    serve(prepare)
