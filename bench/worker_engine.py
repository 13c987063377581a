"""Our CPU engine behind `peer_loop`: worker_engine.py FOLDER SLOTS THREADS."""

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

    from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
    from rl_trainer.rollout.engines.create import create_engine

    torch.set_num_threads(int(sys.argv[3]))
    engine = create_engine(Path(sys.argv[1]), slots=int(sys.argv[2]))

    def run(request: dict[str, Any]) -> dict[str, Any]:
        prompts = np.array(request["prompts"], np.int32)
        start = time.perf_counter()
        engine.add(
            [
                GenerationRequest(index, prompt, SamplingParams(length), seed=index)
                for index, (prompt, length) in enumerate(zip(prompts, request["lengths"], strict=True))
            ]
        )
        made = {}
        while engine.active or engine.waiting:
            for result in engine.step():
                made[result.id] = len(result.tokens)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "lengths": [made[index] for index in range(len(prompts))]}

    return run


if __name__ == "__main__":
    serve(prepare)
