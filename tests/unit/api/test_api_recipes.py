"""Recipes: what each chooses, that they lie under what the run says, and that they do not count as said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rl_api.recipes
from rl_api.algorithm import AlgorithmSpec, CriticSpec, DynamicSamplingSpec
from rl_api.describe import fields_of
from rl_api.recipes import RECIPE_GROUPS, RECIPES, recipe
from rl_api.run import RLTrainingRun
from rl_api.validation import check_document

FOLDER = Path(rl_api.recipes.__file__).parent


def algorithm(**fields: Any) -> AlgorithmSpec:
    spec = {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "algorithm": fields,
    }
    document = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingRun", "metadata": {"name": "x"}}
    run, problems = check_document({**document, "spec": spec})
    assert isinstance(run, RLTrainingRun), problems
    return run.spec.algorithm


def test_the_recipes_are_the_files() -> None:
    assert RECIPES == ("cispo", "dapo", "dr_grpo", "grpo", "gspo", "ppo", "reinforce_pp", "rloo")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_cites_its_paper_and_sets_only_what_it_may(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "arXiv" in text.partition("\n\n")[0]
    assert set(recipe(name)) <= set(RECIPE_GROUPS) <= set(fields_of(AlgorithmSpec))
    chosen = algorithm(name=name).to_document()
    for group, fields in recipe(name).items():
        for field, value in fields.items():
            assert chosen[group][field] == value


@pytest.mark.parametrize(
    ("name", "estimator", "by_std", "kind", "aggregation", "clip", "kl"),
    [
        ("grpo", "groupMean", True, "ppoClip", "tokenMean", (0.2, 0.2), (0.0, "loss")),
        ("dapo", "groupMean", True, "ppoClip", "tokenMean", (0.2, 0.28), (0.0, "loss")),
        ("dr_grpo", "groupMean", False, "ppoClip", "constant", (0.2, 0.2), (0.0, "loss")),
        ("rloo", "leaveOneOut", False, "reinforce", "sequenceSum", (0.2, 0.2), (0.05, "reward")),
        ("gspo", "groupMean", True, "gspo", "sequenceMean", (3e-4, 4e-4), (0.0, "loss")),
        ("cispo", "groupMean", True, "cispo", "tokenMean", (1.0, 4.0), (0.0, "loss")),
        ("ppo", "gae", True, "ppoClip", "tokenMean", (0.2, 0.2), (0.0, "loss")),
        ("reinforce_pp", "batchNormalized", True, "ppoClip", "tokenMean", (0.2, 0.2), (0.01, "reward")),
    ],
)
def test_what_the_papers_say(
    name: str,
    estimator: str,
    by_std: bool,
    kind: str,
    aggregation: str,
    clip: tuple[float, float],
    kl: tuple[float, str],
) -> None:
    chosen = algorithm(name=name)
    assert (chosen.advantage.estimator, chosen.advantage.normalize_by_std) == (estimator, by_std)
    assert (chosen.loss.kind, chosen.loss.aggregation) == (kind, aggregation)
    assert (chosen.clip.low, chosen.clip.high) == clip
    assert (chosen.kl.coefficient, chosen.kl.placement) == kl
    assert (chosen.dynamic_sampling.max_refills > 0) == (chosen.overlong.buffer > 0) == (name == "dapo")


def test_what_the_run_says_is_above_the_recipe() -> None:
    chosen = algorithm(name="dapo", clip={"high": 0.5}, overlong={}, dynamicSampling={"maxRefills": 0})
    assert (chosen.clip.low, chosen.clip.high) == (0.2, 0.5)
    assert chosen.overlong.buffer == 0.2
    assert chosen.dynamic_sampling.max_refills == 0


def test_python_names_and_whole_objects_count_as_said() -> None:
    chosen = AlgorithmSpec(name="dapo", dynamic_sampling=DynamicSamplingSpec(), group_size=4)
    assert (chosen.dynamic_sampling.max_refills, chosen.group_size, chosen.clip.high) == (0, 4, 0.28)
    assert AlgorithmSpec(name="dapo", clip=AlgorithmSpec().clip).clip.high == 0.2
    assert AlgorithmSpec.model_validate(chosen) is chosen


def test_a_critic_comes_with_its_estimator() -> None:
    assert algorithm(name="grpo").value_model is None
    assert (algorithm(name="ppo").critic, algorithm(name="ppo").value_model) == (None, CriticSpec())
    chosen = algorithm(name="ppo", critic={"learningRate": 0.5}, advantage={"lambda": 0.5})
    assert chosen.value_model == CriticSpec(learning_rate=0.5)
    assert (chosen.advantage.estimator, chosen.advantage.lam) == ("gae", 0.5)
    assert algorithm(name="ppo", groupSize=1).group_size == 1


def test_a_recipe_is_not_what_the_file_says() -> None:
    written = {"name": "gspo", "clip": {"high": 0.5}}
    assert algorithm(**written).model_dump(by_alias=True, exclude_unset=True) == written
    assert AlgorithmSpec().model_dump(exclude_unset=True) == {}


def test_written_out_and_read_again_it_is_the_same() -> None:
    for name in RECIPES:
        chosen = algorithm(name=name)
        assert algorithm(**chosen.to_document()) == chosen


def test_an_own_algorithm_has_the_contracts_defaults() -> None:
    own = algorithm(name="my_module:my_loss")
    assert own.own_objective == "my_module:my_loss"
    assert own.model_copy(update={"name": "grpo"}) == algorithm()
    assert algorithm().own_objective is None
