"""Our CPU engine behind `peer_loop`: worker_engine.py FOLDER SLOTS THREADS.

An answer has the seconds, the lengths, and where `products` asks for them, the seconds of the bare matrix products.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer_loop import serve


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import numpy as np
    import torch
    from products import Products

    from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
    from rl_trainer.rollout.engines.create import create_engine

    torch.set_num_threads(int(sys.argv[3]))
    engine = create_engine(Path(sys.argv[1]), slots=int(sys.argv[2]))

    def generate(prompts: np.ndarray, lengths: list[int]) -> dict[int, int]:
        engine.add(
            [
                GenerationRequest(index, prompt, SamplingParams(length), seed=index)
                for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
            ]
        )
        made = {}
        while engine.active or engine.waiting:
            for result in engine.step():
                made[result.id] = len(result.tokens)
        return made

    def run(request: dict[str, Any]) -> dict[str, Any]:
        prompts = np.array(request["prompts"], np.int32)
        start = time.perf_counter()
        made = generate(prompts, request["lengths"])
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds, "lengths": [made[index] for index in range(len(prompts))]}
        if request.get("products"):
            with Products() as products:
                generate(prompts, request["lengths"])
            answer["products"] = products.seconds(request["products"])
        return answer

    return run


if __name__ == "__main__":
    serve(prepare)
