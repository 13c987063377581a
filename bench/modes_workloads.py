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

TOOL = '''"""A search engine that takes its time; its sampler goes on with others meanwhile."""
from rl_trainer.tasks.types import StepResult


class Searching:
    """One look-up, then the answer."""

    def __init__(self, item, args):
        self.question, self.asked = item["question"], False

    def reset(self):
        return self.question

    def step(self, completion):
        if self.asked:
            return StepResult(done=True)
        self.asked = True
        return StepResult(observation="12 34 56", delay_seconds={seconds})
'''


AHEAD = 28
"""Steps where samplers run ahead, of which one may end right after another: of few it is luck where one begins to count."""


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
        reward: seconds that a judge takes for an answer, one after the other; 0: a rule that takes none.
        tool: seconds that each answer waits for a search engine in the middle; 0: there is none.
        swap: whether devices are too small for both roles, so that tensors move (`placement.residency`).
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
    tool: float = 0.0
    swap: bool = False
    algorithm: dict[str, Any] = field(default_factory=dict)
    steps: int = 14

    @property
    def model(self) -> str:
        """Name of its model folder."""
        return f"model-{self.hidden}-{self.tokens}-{self.mean}"


WORKLOADS = (
    # In turn: nobody can work ahead, so that devices of one's own stand idle.
    Workload("short answers", tokens=16, steps=20),
    Workload("long tail", tokens=128, mean=24),
    Workload("wide", tokens=24, hidden=384, prompts=4),
    Workload("reference", tokens=32, algorithm={"kl": {"coefficient": 0.01}}),
    Workload(
        "critic", tokens=32, algorithm={"advantage": {"estimator": "gae", "lambda": 0.95}, "critic": {}}
    ),
    Workload("judge", tokens=96, mean=24, reward=0.01),
    # Decoding takes as long with fewer sequences, learning hardly less with two ranks, or a change of hands much.
    Workload("wide, few, swap", tokens=24, hidden=512, prompts=2, group=4, swap=True),
    Workload(
        "search, staleness 1", tokens=64, mean=20, prompts=4, group=4, staleness=1, tool=0.4, steps=AHEAD
    ),
    Workload("few long answers, staleness 1", tokens=160, prompts=2, group=4, staleness=1, steps=AHEAD),
    Workload("wide, few, staleness 1", tokens=24, hidden=512, prompts=2, group=4, staleness=1, steps=AHEAD),
    Workload("long tail, staleness 2", tokens=128, mean=24, staleness=2, steps=AHEAD),
    Workload("judge, staleness 1", tokens=64, mean=24, group=4, staleness=1, reward=0.02, steps=AHEAD),
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
            file.write(
                json.dumps({"prompt": f"{a}+{b}=", "question": f"{a}+{b}=", "answer": str(a + b) * 32}) + "\n"
            )
    if workload.reward:
        name = f"judge_{round(1000 * workload.reward)}.py"
        (folder / name).write_text(REWARD.format(seconds=workload.reward))
    if workload.tool:
        (folder / "searching.py").write_text(TOOL.format(seconds=workload.tool))


def document(workload: Workload, mode: str, folder: Path, steps: int) -> dict[str, Any]:
    """The RLTrainingRun of `workload` in `mode`; auto: as disaggregated, and the planner may change it."""
    auto = mode == "auto"
    layout = MODES["disaggregated" if auto else mode]
    reward: dict[str, Any] = {"rule": "fraction"}
    if workload.reward:
        reward = {"rule": "function", "function": f"judge_{round(1000 * workload.reward)}:judged"}
    task: dict[str, Any] = {"environment": "prompts"}
    if workload.tool:
        task = {"environment": "tool-use", "name": "searching:Searching", "maxTurns": 2}
    placement = {"mode": "auto"} if auto else dict(layout["placement"])
    if workload.swap and mode != "disaggregated":
        placement["residency"] = "swap"
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "bench-modes"},
        "spec": {
            "model": {"source": str(folder / workload.model)},
            "task": {**task, "file": str(folder / "prompts.jsonl"), "rewards": [reward]},
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
            "placement": placement,
            "checkpoint": None,
            "stop": {"maxSteps": steps},
        },
    }
