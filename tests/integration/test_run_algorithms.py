"""Recipes and a user's own objective train from the model to the summary.

Here are the recipes that change more than the loss; every one has a step in tests/unit/learner/test_learner.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_runs import PROMPTS, RunFiles

pytestmark = pytest.mark.usefixtures("local_ray")

OBJECTIVES = """
def plain(inputs):
    return -inputs.advantages * inputs.log_probs

def broken(inputs):
    raise RuntimeError("not today")
"""


@pytest.mark.parametrize("name", ["dapo", "reinforce_pp"])  # ppo: in test_run_resume.py
def test_a_recipe_trains(tmp_path: Path, name: str):
    files = RunFiles(tmp_path, algorithm={"name": name, "miniBatches": 2}, stop={"maxSteps": 2})
    files.run().assert_well()
    assert [record.step for record in files.steps] == [1, 2]
    assert all(math.isfinite(record.loss) for record in files.steps)
    assert files.steps[0].grad_norm > 0  # the rewards of the second step may all be equal
    assert all(math.isfinite(record.kl) == (name == "reinforce_pp") for record in files.steps)


def test_a_step_that_is_learned_in_parts_has_the_same_result(tmp_path: Path):
    """Of 4 prompts: as a whole, and in parts of 3 and 1; rounding alone tells the weights apart."""
    made = []
    for part in (None, 3):
        files = RunFiles(
            tmp_path / str(part),
            algorithm={"optimizer": {"epsilon": 1e-4}, "kl": {"coefficient": 0.05, "placement": "reward"}},
            placement={"partGroups": part},
            stop={"maxSteps": 3},
        )
        files.run().assert_well()
        files.assert_nothing_lost_or_twice()
        made.append(files)
    whole, parts = made
    # Estimates and gradients of each part, and the optimizer's step where those are several.
    assert [(files.out / "timeline.json").read_text().count('"train"') for files in made] == [3 * 2, 3 * 5]
    for found, expected in zip(parts.steps, whole.steps, strict=True):
        assert found.prompts == expected.prompts
        for name in ("loss", "kl", "grad_norm", "reward_mean", "reward_std", "completion_tokens"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5, abs=1e-6), name
    before = load_file(whole.out / "final" / "model.safetensors")
    for name, value in load_file(parts.out / "final" / "model.safetensors").items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6, msg=name)


def test_groups_without_variance_are_refilled_up_to_the_bound(tmp_path: Path):
    """A reward that is the same for all: every batch refuses 2 * 4 groups, and then takes what comes."""
    files = RunFiles(
        tmp_path,
        task={"rewards": [{"rule": "regex", "pattern": "no such text at all"}]},
        algorithm={"dynamicSampling": {"maxRefills": 2}},
        stop={"maxSteps": 2},
    )
    files.run().assert_well()
    assert [record.groups_dropped for record in files.steps] == [
        {"zero_variance": 2 * PROMPTS},
        {"zero_variance": 4 * PROMPTS},
    ]
    assert files.summary["groups_dropped"] == {"zero_variance": 4 * PROMPTS}
    assert files.summary["zero_variance_groups"] == files.summary["groups_trained"] == 2 * PROMPTS
    files.assert_nothing_lost_or_twice()


def test_answers_that_were_cut_off_are_left_out(tmp_path: Path):
    """With 1 new token nearly all are: what is trained on is less than what was sampled."""
    cut = {"sampler": {"maxNewTokens": 1}, "stop": {"maxSteps": 1}}
    files = RunFiles(tmp_path, algorithm={"overlong": {"maskTruncated": True}}, **cut)
    files.run().assert_well()
    (record,) = files.steps
    assert record.truncated_fraction > 0.5
    assert math.isfinite(record.loss)


def test_an_own_objective_is_the_loss(tmp_path: Path):
    """The same formula by name and as a function: the same weights, bit by bit."""
    weights = []
    for number, algorithm in enumerate(({"loss": {"kind": "reinforce"}}, {"name": "my_loss:plain"})):
        files = RunFiles(tmp_path / str(number), algorithm=algorithm, stop={"maxSteps": 2})
        (files.folder / "my_loss.py").write_text(OBJECTIVES)
        files.run().assert_well()
        weights.append(files.weights)
    assert weights[0] == weights[1]


def test_an_own_objective_that_fails_is_a_sentence(tmp_path: Path):
    files = RunFiles(tmp_path, algorithm={"name": "my_loss:broken"}, stop={"maxSteps": 1})
    (tmp_path / "my_loss.py").write_text(OBJECTIVES)
    outcome = files.run()
    assert outcome.code == 3, outcome
    for part in ("algorithm.name", "my_loss:broken raised RuntimeError: not today", "my_loss.py:6"):
        assert part in outcome.sentence
