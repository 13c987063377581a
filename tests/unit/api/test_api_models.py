from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

import rl_api
from rl_api import (
    AlgorithmSpec,
    Duration,
    InvalidConfig,
    ModelSpec,
    Progress,
    RewardRule,
    RLTrainingProfile,
    RLTrainingRun,
    RunSpec,
    RunStatus,
    TaskSpec,
    check_document,
    dump_yaml,
)
from rl_api.base import StatusModel
from rl_api.describe import fields_of, meanings
from rl_api.documents import load_value
from rl_api.reference import _objects

MINIMAL = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingRun",
    "metadata": {"name": "minimal"},
    "spec": {"model": {"source": "tiny"}, "task": {"environment": "reasoning-gym", "name": "chain_sum"}},
}


def parse_run(document: dict[str, Any]) -> RLTrainingRun:
    run, problems = check_document(document)
    assert isinstance(run, RLTrainingRun), problems
    return run


def all_fields() -> list[tuple[str, str]]:
    seen: set[type] = set()
    models = [pair[0] for root in (RLTrainingRun, RLTrainingProfile) for pair in _objects(root, "", seen)]  # type: ignore[arg-type]
    return [
        (f"{model.__name__}.{name}", meanings(model).get(name, ""))
        for model in models
        for name in fields_of(model)
    ]


def test_every_field_says_what_it_means() -> None:
    fields = all_fields()
    assert len(fields) > 150
    assert [name for name, meaning in fields if not meaning] == []


def test_every_field_is_camel_case() -> None:
    assert [name for name, _ in all_fields() if "_" in name.partition(".")[2]] == []


def test_defaults_are_those_of_the_contract() -> None:
    spec = parse_run(MINIMAL).spec
    assert spec.placement.timeout.seconds == 60.0
    assert spec.task.rewards == (RewardRule(rule="exactMatch", weight=1.0, right=1.0, wrong=0.0),)
    assert spec.algorithm.optimizer.betas == (0.9, 0.999)
    assert spec.algorithm.sequences_per_step == 256
    assert spec.checkpoint is not None
    assert spec.checkpoint.every_steps == 20
    assert spec.checkpoint.storage is None
    assert (spec.warm_start, spec.task.evaluation, spec.profile) == (None, None, None)
    assert (spec.buffer.capacity, spec.buffer.max_staleness, spec.stop.max_steps) == (256, 0, 100)


def test_a_run_written_out_is_the_same_run() -> None:
    run = parse_run(MINIMAL)
    again = parse_run(load_value(dump_yaml(run.to_document())))
    assert again == run
    assert again.name == "minimal"


def test_python_takes_snake_case_and_files_do_not() -> None:
    assert AlgorithmSpec(group_size=4, learning_rate=1e-3).group_size == 4
    document = {**MINIMAL, "spec": {**MINIMAL["spec"], "warm_start": {}}}
    _, problems = check_document(document)
    assert [problem.sentence for problem in problems] == ["unknown field, did you mean warmStart?"]


def test_specs_cannot_be_changed_by_accident() -> None:
    spec = parse_run(MINIMAL).spec
    with pytest.raises(ValidationError, match="frozen"):
        spec.seed = 1  # type: ignore[misc]
    assert spec.model_copy(update={"seed": 1}).seed == 1


def test_what_kubectl_prints_can_be_run_again() -> None:
    document = {
        **MINIMAL,
        "metadata": {
            **MINIMAL["metadata"],
            "uid": "1234",
            "resourceVersion": "7",
            "generation": 2,
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "status": {
            "phase": "Training",
            "conditions": [
                {"type": "Training", "status": "True", "lastTransitionTime": "2026-01-31T12:00:00Z"}
            ],
            "progress": {"step": 3, "updatedAt": "2026-01-31T12:00:00Z"},
            "dashboardURL": "http://head:8265",
            "fieldOfAFutureVersion": 1,
        },
    }
    run = parse_run(document)
    assert run.status is not None
    assert run.status.dashboard_url == "http://head:8265"
    assert run.to_document()["metadata"] == {
        "name": "minimal",
        "namespace": None,
        "labels": {},
        "annotations": {},
    }


def test_a_run_is_built_in_python_too() -> None:
    spec = RunSpec(model=ModelSpec(source="tiny"), task=TaskSpec(environment="tool-use", name="calculator"))
    assert spec.scheduling.preemption_grace_period == Duration(120)


def test_a_run_without_a_model_and_a_task_says_so_when_it_is_asked() -> None:
    spec = RunSpec.model_validate({"trainer": {"kind": "command", "command": ["python", "train.py"]}})
    with pytest.raises(InvalidConfig, match=r"^spec\.model: missing, required with trainer\.kind command$"):
        _ = spec.model
    with pytest.raises(InvalidConfig, match=r"^spec\.task: missing, required with trainer\.kind command$"):
        _ = spec.task


def test_progress_is_json_of_camel_case_and_null() -> None:
    progress = Progress(phase="Training", step=3, max_steps=10, reward=0.5, heldout_score=None)
    document = progress.to_document()
    assert document == {
        "phase": "Training",
        "step": 3,
        "maxSteps": 10,
        "reward": 0.5,
        "heldoutScore": None,
        "tokensPerSecond": None,
        "totalTokensPerSecond": None,
        "bufferFill": None,
        "staleness": None,
        "samplerBusy": None,
        "learnerBusy": None,
        "samplerCpus": None,
        "learnerCpus": None,
        "driverCpus": None,
        "samplerGpuBusy": None,
        "learnerGpuBusy": None,
        "objectStoreBytes": None,
        "betweenNodesBytes": None,
        "etaSeconds": None,
        "placement": None,
        "updatedAt": None,
    }
    assert Progress.model_validate(document) == progress


@pytest.mark.parametrize(
    "wrong", [{"step": -1}, {"reward": float("nan")}, {"bufferFill": 1.5}, {"phase": "Napping"}]
)
def test_progress_refuses_what_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Progress.model_validate(wrong)


def test_a_status_of_a_newer_version_can_be_read() -> None:
    status = RunStatus.model_validate({"attempts": [{"number": 1, "rayJob": "a-1", "new": 1}], "new": {}})
    assert status.attempts[0].ray_job == "a-1"
    assert issubclass(RunStatus, StatusModel)
    assert status.to_document()["dashboardURL"] is None


def test_all_public_names_exist_and_are_documented() -> None:
    assert sorted(rl_api.__all__) == sorted(set(rl_api.__all__))
    undocumented = [
        name
        for name in rl_api.__all__
        if (inspect.isclass(getattr(rl_api, name)) or inspect.isfunction(getattr(rl_api, name)))
        and not inspect.getdoc(getattr(rl_api, name))
    ]
    assert undocumented == []


def test_the_contract_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys, rl_api.validation; print({'torch', 'ray', 'numpy', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "set()"
