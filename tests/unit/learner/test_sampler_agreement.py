"""Engine and learner give the same tokens the same log-probs, in fp32 on a CPU, and the mismatch metric says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from trajectories import sampled

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.policy_losses import LossInputs
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.trajectory import Trajectory

LARGEST_DIFFERENCE = 1e-4
PROMPTS, GROUP_SIZE = 6, 4


def generated(folder: Path, temperature: float, longest: int = 60, **cuts: float) -> list[Trajectory]:
    """Groups of answers of many lengths, all in flight together."""
    rng = np.random.default_rng(0)
    engine = create_engine(folder, slots=7)
    requests = []
    for prompt in range(PROMPTS):
        tokens = rng.integers(2, 61, rng.integers(1, 40)).astype(np.int32)
        for member in range(GROUP_SIZE):
            params = SamplingParams(int(rng.integers(1, longest)), temperature=temperature, **cuts)  # type: ignore[arg-type]
            requests.append(GenerationRequest((prompt, member), tokens, params, 10 * prompt + member))
    engine.add(requests)
    results = {}
    while engine.active or engine.waiting:
        results.update({result.id: result for result in engine.step()})
    samples = []
    for request in requests:
        result = results[request.id]
        tokens = np.concatenate([request.prompt, result.tokens])
        mask = np.arange(len(tokens)) >= len(request.prompt)
        samples.append(sampled(tokens, mask, result.logprobs, advantage=float(rng.normal())))
    return samples


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", ["llama", "qwen2-tied", "qwen3"])
def test_log_probs_of_the_learner_are_those_of_the_engine(
    family: str, temperature: float, family_folder: Callable[[str], Path]
) -> None:
    torch.set_num_threads(1)
    folder = family_folder(family)
    samples = generated(folder, temperature)
    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "sampler": {"temperature": temperature},
            "learner": {"tokensPerMicroBatch": 300},
        }
    )
    differences: list[torch.Tensor] = []

    def objective(inputs: LossInputs) -> torch.Tensor:
        assert inputs.sampler_log_probs is not None
        difference = (inputs.log_probs - inputs.sampler_log_probs).detach()
        differences.append(difference[inputs.trained].abs())
        return -inputs.advantages * inputs.log_probs

    lengths = [int(sample.mask.sum()) for sample in samples]
    learner = Learner(folder, spec, objective=objective)
    result = learner.update([MiniBatch(samples, LossDenominators.from_lengths(lengths))])

    assert len(differences) > 1  # several micro-batches
    measured = torch.cat(differences)
    assert len(measured) == sum(lengths)
    assert measured.max() < LARGEST_DIFFERENCE
    assert 1.0 <= result.metrics["mismatch_ratio"] < 1.0 + LARGEST_DIFFERENCE
    assert abs(result.metrics["mismatch_kl"]) < LARGEST_DIFFERENCE**2


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("family", "temperature"), [("qwen2-tied", 1.0), ("qwen2-tied", 0.7), ("gpt2", 1.0)])
@pytest.mark.parametrize("cuts", [{"top_p": 0.9}, {"top_k": 5}], ids=str)
def test_what_was_cut_is_no_distance_between_sampler_and_learner(
    cuts: dict[str, float], family: str, temperature: float, level: str, family_folder: Callable[[str], Path]
) -> None:
    torch.set_num_threads(1)
    folder = family_folder(family)  # gpt2: the library's engine
    samples = generated(folder, temperature, longest=25, **cuts)
    spec = RunSpec.model_validate(
        {
            "model": {"source": "tiny"},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {"importance": {"kind": "truncate", "level": level}},
            "sampler": {"temperature": temperature},
        }
    )
    lengths = [int(sample.mask.sum()) for sample in samples]
    result = Learner(folder, spec).update([MiniBatch(samples, LossDenominators.from_lengths(lengths))])
    assert result.metrics["sampler_ratio_mean"] == pytest.approx(1, abs=LARGEST_DIFFERENCE)
    assert result.metrics["importance_mean"] == pytest.approx(1, abs=LARGEST_DIFFERENCE)
    assert abs(result.metrics["mismatch_kl"]) < LARGEST_DIFFERENCE**2
