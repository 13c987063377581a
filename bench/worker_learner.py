"""Our learner behind `peer_loop`: worker_learner.py MODEL-FOLDER THREADS LEARNING-RATE [checkpointing].

An answer has the seconds and the loss of each step, and by how much the resident memory rose in these steps at its highest.
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
    from worker_head import resident, start_high_water

    from rl_api import RunSpec
    from rl_trainer.algorithms.denominators import LossDenominators
    from rl_trainer.learner.rank import Learner, MiniBatch
    from rl_trainer.trajectory import Trajectory

    torch.set_num_threads(int(sys.argv[2]))
    spec = RunSpec.model_validate(
        {
            "model": {"source": sys.argv[1]},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {
                "name": "cispo",
                "learningRate": float(sys.argv[3]),
                "loss": {"aggregation": "tokenMean"},
                "importance": {"kind": "none"},
                "gradientClip": 1.0,
            },
            "learner": {"activationCheckpointing": "checkpointing" in sys.argv},
            "stop": {"maxSteps": 1_000_000},
        }
    )
    state: dict[str, Learner] = {}

    def run(request: dict[str, Any]) -> dict[str, Any]:
        if request["fresh"]:
            state["learner"] = Learner(Path(sys.argv[1]), spec)
        samples = []
        for prompt, completion, advantage in zip(
            request["prompts"], request["completions"], request["advantages"], strict=True
        ):
            sampled = np.zeros(len(prompt) + len(completion), np.bool_)
            sampled[len(prompt) :] = True
            samples.append(
                Trajectory(
                    np.array(prompt + completion, np.int32),
                    sampled,
                    np.full(len(completion), -4.5, np.float32),
                    np.zeros(len(completion), np.int32),
                    advantage=advantage,
                )
            )
        denominators = LossDenominators.from_lengths([len(one) for one in request["completions"]])
        seconds, losses = [], []
        before = start_high_water()
        for _ in range(request["steps"]):
            start = time.perf_counter()
            result = state["learner"].update([MiniBatch(samples, denominators)])
            seconds.append(time.perf_counter() - start)
            losses.append(result.metrics["loss"])
        return {"seconds": seconds, "losses": losses, "bytes": resident("VmHWM") - before}

    return run


if __name__ == "__main__":
    serve(prepare)
