"""The run that is measured, and the trajectories of one step of it: the same for a seed everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_lane.job import Job
from gpu_lane.shapes import SHAPES, Shape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rl_api import RunSpec
    from rl_trainer.rollout.engines.base import GenerationRequest, GenerationResult
    from rl_trainer.trajectory import Trajectory

RATE = 1e-4
# Ids 0 and 1 end sequences or pad them.
_FIRST_TOKEN = 2


def run_spec(job: Job, *, lora: bool, learner: dict[str, Any] | None = None) -> RunSpec:
    """The spec of the lane's runs; `learner`: fields of it beside the shape's."""
    from rl_api import RunSpec

    return RunSpec.model_validate(document(job, lora=lora, learner=learner)["spec"])


def document(job: Job, *, lora: bool, learner: dict[str, Any] | None = None) -> dict[str, Any]:
    """The RLTrainingRun of the lane's runs."""
    shape = SHAPES[job.shape]
    fields: dict[str, Any] = {
        "tokensPerMicroBatch": shape.micro_batch,
        "activationCheckpointing": shape.checkpointing,
        **({"lora": {}} if lora else {}),
        **(learner or {}),
    }
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "gpu-lane"},
        "spec": {
            "model": {"source": job.folder, "dtype": job.dtype},
            "task": {
                "environment": "prompts",
                "file": f"{job.scratch}/prompts.jsonl",
                "rewards": [{"rule": "fraction"}],
            },
            "algorithm": {
                "name": "grpo",
                "groupSize": shape.group,
                "promptsPerStep": shape.prompts,
                "learningRate": RATE,
            },
            "sampler": {
                "maxNewTokens": shape.longest,
                "maxSequences": max(shape.levels),
            },
            "learner": fields,
            "checkpoint": None,
            "stop": {"maxSteps": shape.steps + 1},
        },
    }


def prompts(shape: Shape, count: int, seed: int = 0) -> list[npt.NDArray[np.int32]]:
    """Random prompts, int32 [P] each."""
    import numpy as np

    rng = np.random.default_rng(seed)
    vocabulary = int(shape.config["vocab_size"])
    return [rng.integers(_FIRST_TOKEN, vocabulary, shape.prompt).astype(np.int32) for _ in range(count)]


def trajectories(shape: Shape, seed: int = 0) -> list[Trajectory]:
    """A step's groups, one after the other: completions of log-normal length around half the longest, random advantages.

    Sampler's log-probs are those of an even choice, which random weights are near to.
    """
    import numpy as np

    from rl_trainer.trajectory import Trajectory

    rng = np.random.default_rng(seed)
    vocabulary = int(shape.config["vocab_size"])
    made = []
    for prompt in prompts(shape, shape.prompts, seed):
        for _ in range(shape.group):
            length = int(np.clip(rng.lognormal(0.0, 0.6) * shape.longest / 2, 4, shape.longest))
            completion = rng.integers(_FIRST_TOKEN, vocabulary, length).astype(np.int32)
            mask = np.zeros(len(prompt) + length, np.bool_)
            mask[len(prompt) :] = True
            made.append(
                Trajectory(
                    np.concatenate((prompt, completion)),
                    mask,
                    np.full(length, -np.log(vocabulary), np.float32),
                    np.zeros(length, np.int32),
                    advantage=float(rng.normal()),
                )
            )
    return made


def requests(job: Job, count: int, version: int = 0) -> list[GenerationRequest]:
    """The completions of a step as an engine is asked for them, `count` in groups to one prompt; seeds differ by version."""
    from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams

    shape = SHAPES[job.shape]
    asked = prompts(shape, -(-count // shape.group))
    params = SamplingParams(shape.longest)
    return [
        GenerationRequest(index, asked[index // shape.group], params, seed=count * version + index)
        for index in range(count)
    ]


def sampled(
    asked: Sequence[GenerationRequest], results: Mapping[Any, GenerationResult], group: int
) -> list[Trajectory]:
    """What an engine has sampled as trajectories, rewarded by the share of even token ids, with GRPO's advantages."""
    import numpy as np

    from rl_trainer.algorithms.advantages import group_advantages
    from rl_trainer.trajectory import Trajectory

    found = [results[request.id] for request in asked]
    rewards = [float(np.mean(one.tokens % 2 == 0)) for one in found]
    advantages, _ = group_advantages(rewards, [index // group for index in range(len(found))])
    made = []
    for request, one, reward, advantage in zip(asked, found, rewards, advantages, strict=True):
        mask = np.zeros(len(request.prompt) + len(one.tokens), np.bool_)
        mask[len(request.prompt) :] = True
        tokens = np.concatenate((request.prompt, one.tokens))
        made.append(Trajectory(tokens, mask, one.logprobs, one.versions, reward, advantage=float(advantage)))
    return made
