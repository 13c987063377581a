"""The workloads of `modes.py`: small runs that differ in what decides who should share a device."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loop import PROMPTS, write_model

REWARD = '''"""A reward that takes its time, as a judge on a server does."""
import time


def judged(prompt: str, completion: str, answer: str) -> float:
    time.sleep({seconds})
    return sum(a == b for a, b in zip(completion, answer)) / max(1, len(answer))
'''


@dataclass(frozen=True)
class Workload:
    """One of them. A repetition is `steps` training steps, of which the first are not counted.

    Attributes:
        name: of its row.
        prompts, group: of a step: groups, and answers of each.
        tokens: longest answer.
        mean: tokens of answers on average, geometric and cut; None: all have `tokens`.
        hidden: width of the model, of 4 layers.
        staleness: `buffer.maxStaleness`.
        reward: seconds that a judge takes for an answer; 0: a rule that takes none.
        algorithm: more fields of `algorithm`.
        steps: of a repetition.
    """

    name: str
    prompts: int = 8
    group: int = 8
    tokens: int = 64
    mean: float | None = None
    hidden: int = 128
    staleness: int = 0
    reward: float = 0.0
    algorithm: dict[str, Any] = field(default_factory=dict)
    steps: int = 14

    @property
    def model(self) -> str:
        """Name of its model folder."""
        return f"model-{self.hidden}-{self.tokens}-{self.mean}"


WORKLOADS = (
    Workload("equal 16", tokens=16, steps=24),
    Workload("equal 64"),
    Workload("long tail", tokens=128, mean=24),
    Workload("long tail, 32 prompts of 4", prompts=32, group=4, tokens=96, mean=24),
    Workload("2 prompts of 32", prompts=2, group=32, tokens=48),
    Workload("narrow, long", tokens=160, hidden=64, prompts=4),
    Workload("wide", tokens=24, hidden=384, prompts=4),
    Workload("staleness 1", staleness=1),
    Workload("staleness 2, long tail", tokens=128, mean=24, staleness=2),
    Workload("reference", tokens=32, algorithm={"kl": {"coefficient": 0.01}}),
    Workload(
        "critic", tokens=32, algorithm={"advantage": {"estimator": "gae", "lambda": 0.95}, "critic": {}}
    ),
    Workload("slow judge, long tail", tokens=96, mean=24, reward=0.02),
)

MODES: dict[str, dict[str, Any]] = {
    "disaggregated": {"learner": 1, "samplers": 1, "placement": {"mode": "disaggregated"}},
    "collocated": {"learner": 2, "samplers": 2, "placement": {"mode": "collocated"}},
    "hybrid": {"learner": 1, "samplers": 2, "placement": {"mode": "hybrid", "sharedSamplers": 1}},
}
"""What a user would write for two devices."""


def write_inputs(workload: Workload, folder: Path) -> None:
    """Its model, prompts and reward in `folder`, where they are not there yet."""
    from rl_api.run import TinyModelSpec

    if not (folder / workload.model).exists():
        heads = workload.hidden // 32
        shape = TinyModelSpec(
            hidden_size=workload.hidden,
            layers=4,
            heads=heads,
            kv_heads=heads // 2,
            intermediate_size=2 * workload.hidden,
            max_positions=192,
        )
        write_model(folder / workload.model, workload.tokens, workload.mean, shape)
    generator = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for _ in range(PROMPTS):
            a, b = generator.randrange(10, 100), generator.randrange(10, 100)
            file.write(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b) * 32}) + "\n")
    if workload.reward:
        name = f"judge_{round(1000 * workload.reward)}.py"
        (folder / name).write_text(REWARD.format(seconds=workload.reward))


def document(workload: Workload, mode: str, folder: Path, steps: int) -> dict[str, Any]:
    """The RLTrainingRun of `workload` in `mode`; auto: as disaggregated, and the planner may change it."""
    auto = mode == "auto"
    layout = MODES["disaggregated" if auto else mode]
    reward: dict[str, Any] = {"rule": "fraction"}
    if workload.reward:
        reward = {"rule": "function", "function": f"judge_{round(1000 * workload.reward)}:judged"}
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "bench-modes"},
        "spec": {
            "model": {"source": str(folder / workload.model)},
            "task": {
                "environment": "prompts",
                "file": str(folder / "prompts.jsonl"),
                "rewards": [reward],
            },
            "algorithm": {
                "name": "grpo",
                "groupSize": workload.group,
                "promptsPerStep": workload.prompts,
                "learningRate": 1e-6,
                **workload.algorithm,
            },
            "sampler": {
                "replicas": layout["samplers"],
                "maxNewTokens": workload.tokens,
                "maxSequences": 128,
            },
            "learner": {"replicas": layout["learner"]},
            "buffer": {"maxStaleness": workload.staleness},
            "placement": {"mode": "auto"} if auto else dict(layout["placement"]),
            "checkpoint": None,
            "stop": {"maxSteps": steps},
        },
    }
