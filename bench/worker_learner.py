"""Our learner behind `peer_loop`: worker_learner.py MODEL-FOLDER THREADS LEARNING-RATE [checkpointing].

An answer has the seconds and the loss of each step, by how much the resident memory rose in these steps at its highest, and
where `products` asks for them, the seconds of a step's bare matrix products. As several ranks (`rank_loop`) it divides the
model over them (FSDP2), and the batch as the driver does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rank_loop import RANK, RANKS, serve_ranks, timed


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import numpy as np
    import torch
    import torch.distributed as dist
    from products import Products
    from worker_head import resident, start_high_water

    from rl_api import RunSpec
    from rl_trainer.learner.plan import plan_update
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
            "learner": {
                "activationCheckpointing": "checkpointing" in sys.argv,
                "replicas": RANKS,
                "parallelism": "fsdp2" if RANKS > 1 else "ddp",
            },
            "stop": {"maxSteps": 1_000_000},
        }
    )
    if RANKS > 1:
        dist.init_process_group("gloo")
    state: dict[str, Learner] = {}

    def run(request: dict[str, Any]) -> dict[str, Any]:
        if request["fresh"]:
            state["learner"] = Learner(Path(sys.argv[1]), spec, rank=RANK, ranks=RANKS)
        learner = state["learner"]
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
        # Groups are what has a prompt in common.
        starts = [
            index
            for index, prompt in enumerate(request["prompts"])
            if index == 0 or prompt != request["prompts"][index - 1]
        ]
        groups = [samples[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        [part] = plan_update(
            [[len(one.tokens) for one in group] for group in groups],
            [[len(one.log_probs) for one in group] for group in groups],
            request["advantages"],
            ranks=RANKS,
        )
        chosen = [groups[member.group][member.member] for member in part.ranks[RANK]]
        work = partial(learner.update, [MiniBatch(chosen, part.denominators)])
        seconds, losses = [], []
        before = start_high_water()
        for _ in range(request["steps"]):
            took, result = timed(work)
            seconds.append(took)
            losses.append(result.metrics["loss"])
        answer = {"seconds": seconds, "losses": losses, "bytes": resident("VmHWM") - before}
        if request.get("products"):
            with Products() as products:
                work()
            bare = torch.tensor(products.seconds(request["products"]))
            if RANKS > 1:
                dist.all_reduce(bare, op=dist.ReduceOp.MAX)
            answer["products"] = bare.tolist()
        return answer

    return run


if __name__ == "__main__":
    serve_ranks(prepare)
