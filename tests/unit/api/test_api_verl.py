"""`trainer.kind: verl`: what verl has no counterpart for. What it has is checked with verl itself (tests/numerics)."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_api import RLTrainingRun, check_document
from rl_api.paths import parse_path, render_path
from rl_api.verl import hydra_overrides, verl_config

GOOD: dict[str, Any] = {
    "trainer": {"kind": "verl"},
    "model": {"source": "org/model"},
    "task": {
        "environment": "prompts",
        "file": "train.parquet",
        "rewards": [{"rule": "function", "function": "rewards:score"}],
    },
    "sampler": {"engine": "vllm"},
}


def check(path: str | None = None, value: Any = None) -> tuple[Any, list[str]]:
    spec = deepcopy(GOOD)
    if path is not None:
        *parents, last = parse_path(path)
        inside: Any = spec
        for part in parents:
            inside = inside[part] if isinstance(part, int) else inside.setdefault(part, {})
        inside[last] = value
    document = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingRun", "metadata": {"name": "a"}}
    run, problems = check_document(document | {"spec": spec})
    return run, [f"{render_path(problem.path)}: {problem.sentence}" for problem in problems]


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (
            "model.source",
            "tiny",
            "spec.model.source: found tiny, allowed with trainer.kind verl: a folder or a hub id",
        ),
        ("model.revision", "main", "found main, allowed with trainer.kind verl: null"),
        ("task.promptTemplate", "{question}", "found {question}, allowed with trainer.kind verl: null"),
        ("task.tools", [{}], "spec.task.tools: found a list, allowed with trainer.kind verl: an empty list"),
        (
            "task.chatTemplateKwargs",
            {"a": 1},
            "found an object, allowed with trainer.kind verl: an empty object",
        ),
        ("task.observationRole", "tool", "found tool, allowed with trainer.kind verl: user"),
        (
            "task.evaluation",
            {},
            "spec.task.evaluation: found an object, allowed with trainer.kind verl: null",
        ),
        (
            "model.source",
            "s3://a/b",
            "spec.model.source: found s3://a/b, allowed with trainer.kind verl: a folder",
        ),
        (
            "algorithm.overlong.maskTruncated",
            True,
            "spec.algorithm.overlong.maskTruncated: found true, allowed with trainer.kind verl: false",
        ),
        (
            "algorithm.advantage.estimator",
            "leaveOneOut",
            "estimator: found leaveOneOut, allowed with trainer.kind",
        ),
        (
            "task.rewards",
            [{"rule": "function", "function": "rewards:score"}] * 2,
            "spec.task.rewards: found function, function, allowed with trainer.kind verl: one part of rule function",
        ),
        (
            "task",
            {key: value for key, value in GOOD["task"].items() if key != "file"}
            | {"dataset": {"name": "a/b"}},
            "spec.task.dataset: found an object, allowed with trainer.kind verl: null",
        ),
        ("task.file", "prompts.csv", "a .parquet, .json or .jsonl file"),
        ("task.rewards", [{}], "found exactMatch, allowed with trainer.kind verl: one part of rule function"),
        ("task.rewards[0].right", 5, "spec.task.rewards[0]: found weight, right or wrong"),
        ("algorithm.name", "my_module:loss", "spec.algorithm.name: found my_module:loss"),
        ("algorithm.loss.kind", "reinforce", "allowed with trainer.kind verl: ppoClip or gspo or cispo"),
        ("algorithm.advantage.estimator", "maxRl", "spec.algorithm.advantage.estimator: found maxRl"),
        ("algorithm.advantage.epsilon", 1e-3, "allowed with trainer.kind verl: 1e-06"),
        ("algorithm.importance", {"kind": "mask"}, "spec.algorithm.importance.low: found null"),
        ("algorithm.importance.low", 0.5, "spec.algorithm.importance.low: found 0.5"),
        ("algorithm.miniBatches", 64, "a divisor of algorithm.promptsPerStep = 32"),
        ("algorithm.overlong.buffer", 0.5, "found 0.5, allowed with trainer.kind verl: 0.0"),
        ("algorithm.ratioBound", 4, "found 4.0, allowed with trainer.kind verl: null"),
        ("sampler.engine", "torch", "found torch, allowed with trainer.kind verl: vllm"),
        ("sampler.stop", ["x"], "found a list, allowed with trainer.kind verl: an empty list"),
        ("buffer.maxStaleness", 1, "found 1, allowed with trainer.kind verl: 0"),
        ("stop.targetReward", 0.5, "found 0.5, allowed with trainer.kind verl: null"),
        ("checkpoint", {"storage": {"s3": "s3://a"}}, "spec.checkpoint.storage.s3: found s3://a"),
        (
            "checkpoint.asynchronous",
            "always",
            "spec.checkpoint.asynchronous: found always, allowed with trainer.kind verl: auto or never",
        ),
        (
            "retry.livenessTimeout",
            "5s",
            "spec.retry.livenessTimeout: found 5s, allowed with trainer.kind verl: 2m",
        ),
    ],
)
def test_it_is_refused_with_a_sentence(path: str, value: Any, sentence: str) -> None:
    run, problems = check(path, value)
    assert run is None
    assert len(problems) == 1
    assert sentence in problems[0]


RUNS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "verl_configs.yaml").read_text())


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_verl_is_given_the_whole_run(number: int) -> None:
    document = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingRun", "metadata": {"name": "a"}}
    run, problems = check_document(document | {"spec": RUNS[number]["spec"]})
    assert isinstance(run, RLTrainingRun), problems
    found = verl_config(run.spec, name="a", checkpoints="/checkpoints", gpus_per_node=8)
    assert found == RUNS[number]["config"]


def config(path: str, value: Any) -> dict[str, Any]:
    run, problems = check(path, value)
    assert isinstance(run, RLTrainingRun), problems
    return verl_config(run.spec, name="a", checkpoints="/checkpoints", gpus_per_node=8)


def test_without_checkpoints_verl_saves_none() -> None:
    trainer = config("checkpoint", None)["trainer"]
    assert (trainer["save_freq"], trainer["max_actor_ckpt_to_keep"]) == (-1, None)


def test_prompts_are_left_out_where_it_is_known_how_long_they_may_be() -> None:
    data = config("sampler.maxModelLen", 4096)["data"]
    assert data["filter_overlong_prompts"] is True
    assert data["max_prompt_length"] == 4096 - data["max_response_length"]


@pytest.mark.parametrize("on_long", ["drop", "fail"])
def test_verl_ends_the_run_at_prompts_longer_than_its_own_limit(on_long: str) -> None:
    data = config("task.onLongPrompt", on_long)["data"]
    assert (data["filter_overlong_prompts"], "max_prompt_length" in data) == (False, False)


def test_verl_divides_no_model_for_us() -> None:
    _, problems = check("learner.parallelism", "fsdp2")
    assert [str(problem) for problem in problems] == [
        "spec.learner.parallelism: found fsdp2, allowed with trainer.kind verl: ddp"
    ]


@pytest.mark.parametrize(("refills", "enabled", "batches"), [(0, False, 0), (1, True, 2)])
def test_refills_are_batches_beside_the_first(refills: int, enabled: bool, batches: int) -> None:
    found = config("algorithm.dynamicSampling.maxRefills", refills)["algorithm"]["filter_groups"]
    assert (found["enable"], found["max_num_gen_batches"]) == (enabled, batches)


@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_the_kl_penalty_has_one_place_or_none(placement: str, coefficient: float) -> None:
    found = config("algorithm.kl", {"placement": placement, "coefficient": coefficient})
    used = (found["actor_rollout_ref"]["actor"]["use_kl_loss"], found["algorithm"]["use_kl_in_reward"])
    assert used == (coefficient > 0 and placement == "loss", coefficient > 0 and placement == "reward")


def test_a_length_of_the_loss_goes_before_the_answers() -> None:
    loss = {"aggregation": "constant", "constantLength": 77}
    assert config("algorithm.loss", loss)["actor_rollout_ref"]["actor"]["loss_scale_factor"] == 77


def test_hydra_gets_every_leaf_once_and_quoted() -> None:
    run, problems = check()
    assert isinstance(run, RLTrainingRun), problems
    config = verl_config(run.spec, name="it's", checkpoints="/a b", gpus_per_node=2)
    overrides = hydra_overrides(config)
    names = [override.partition("=")[0] for override in overrides]
    assert len(set(names)) == len(names) > 50
    assert "trainer.experiment_name='it\\'s'" in overrides
    assert "trainer.default_local_dir='/a b'" in overrides
    assert "trainer.n_gpus_per_node=2" in overrides
    assert "trainer.val_before_train=false" in overrides
    assert "actor_rollout_ref.actor.loss_scale_factor=null" in overrides
    assert "data.train_files=['train.parquet']" in overrides
    assert "actor_rollout_ref.actor.optim.override_optimizer_config={eps:1e-08}" in overrides
