"""One learner rank behind `peer_loop`, and what its memory did: worker_memory.py THREADS.

A request names a model folder and how the rank learns. What libraries take is not counted: a small model of the same family
(`small`) is loaded, trained and published by the same calls first. Bytes of the answer are above what was resident then.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer_loop import serve


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import numpy as np
    import torch
    import torch.distributed as dist
    from worker_head import resident, start_high_water

    from rl_api import RunSpec
    from rl_trainer.algorithms.denominators import LossDenominators
    from rl_trainer.learner.host_memory import give_back_freed_memory
    from rl_trainer.learner.rank import Learner, MiniBatch
    from rl_trainer.learner.sources import weight_source
    from rl_trainer.trajectory import Trajectory
    from rl_trainer.weights.payload import pack_weights

    torch.set_num_threads(int(sys.argv[1]))
    # As learners do that divide a model; of whole ones too, so that what is resident is what is in use.
    give_back_freed_memory()

    def specification(request: dict[str, Any]) -> RunSpec:
        return RunSpec.model_validate(
            {
                "model": {"source": request["folder"]},
                "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                "algorithm": {"name": "grpo", "learningRate": 1e-5},
                "learner": {
                    "parallelism": "fsdp2" if request["ranks"] > 1 else "ddp",
                    "tokensPerMicroBatch": request["tokens"],
                    **request["learner"],
                },
                "stop": {"maxSteps": 1_000_000},
            }
        )

    def batch(request: dict[str, Any], vocabulary: int) -> MiniBatch:
        """Two micro-batches of `tokens` tokens, in sequences of `length` that begin differently."""
        rng = np.random.default_rng(request["rank"])
        length = request["length"]
        samples = [
            Trajectory(
                rng.integers(0, vocabulary, length + 1).astype(np.int32),
                np.arange(length + 1) > 0,
                np.full(length, -4.5, np.float32),
                np.zeros(length, np.int32),
                advantage=float(rng.normal()),
            )
            for _ in range(2 * request["tokens"] // length)
        ]
        count = request["ranks"] * len(samples)
        return MiniBatch(samples, LossDenominators.from_lengths([length] * count))

    def learn(folder: str, request: dict[str, Any]) -> dict[str, int]:
        before = start_high_water()
        learner = Learner(Path(folder), specification(request), rank=request["rank"], ranks=request["ranks"])
        learner.start_reinforcement()
        found = {"load_peak": resident("VmHWM") - before, "loaded": resident("VmRSS") - before}
        part = batch(request, json.loads((Path(folder) / "config.json").read_text())["vocab_size"])
        start_high_water()
        for _ in range(request["steps"]):
            assert learner.update([part]).optimizer_steps == 1
        found |= {"peak": resident("VmHWM") - before, "kept": resident("VmRSS") - before}
        held = start_high_water()
        for block in pack_weights(weight_source(learner), 1):
            del block
        return found | {"publish": resident("VmHWM") - held, "before": before}

    def run(request: dict[str, Any]) -> dict[str, Any]:
        if request["ranks"] > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{request['store']}",
                rank=request["rank"],
                world_size=request["ranks"],
            )
        learn(request["small"], {**request, "tokens": 2 * request["length"]})
        gc.collect()
        found = learn(request["folder"], request)
        if request["ranks"] > 1:
            dist.destroy_process_group()
        return found

    return run


if __name__ == "__main__":
    serve(prepare)
