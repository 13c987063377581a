"""CustomResourceDefinitions: up to date, structural, small, and true to the models."""

from __future__ import annotations

import json
import math
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import rl_api.crd
from rl_api.crd import definitions, main, render
from rl_api.crd_rules import MUTABLE, RUN_RULES, frozen_rules
from rl_api.crd_schema import SchemaWriter
from rl_api.describe import fields_of, type_of
from rl_api.documents import dump_yaml, load_documents
from rl_api.profile import PROFILE_GROUPS, RLTrainingProfile
from rl_api.progress import MOST_ATTEMPTS
from rl_api.roles import SamplerSpec
from rl_api.run import ModelSpec, RLTrainingRun, RunSpec, SchedulingSpec

CHART = Path(__file__).parents[3] / "charts" / "rltrain" / "templates" / "crds"
Schema = dict[str, Any]


def schema_of(name: str) -> Schema:
    schema: Schema = definitions()[name]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def at(schema: Schema, path: str) -> Schema:
    for part in path.split("."):
        schema = schema["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            schema = schema["items"]
    return schema


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*")


NAMES = sorted(definitions())


@pytest.mark.parametrize("name", NAMES)
def test_the_chart_has_the_definition_that_the_models_give(name: str) -> None:
    assert (CHART / f"{name}.yaml").read_text(encoding="utf-8") == render(name), "run: make manifests"


def test_the_chart_has_no_other_definition() -> None:
    assert sorted(path.stem for path in CHART.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_small_enough_for_client_side_apply(name: str) -> None:
    # kubectl keeps what it applied in an annotation, of at most 256 KiB
    assert len(json.dumps(definitions()[name])) < 200_000


@pytest.mark.parametrize("name", NAMES)
def test_structural(name: str) -> None:
    for path, schema in walk(schema_of(name)):
        assert "$ref" not in schema, path
        assert not {"anyOf", "oneOf", "allOf"} & set(schema), path
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert not ("properties" in schema and "additionalProperties" in schema), path


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_a_person_is_described(name: str) -> None:
    bare = [
        path
        for path, schema in walk(schema_of(name))
        if not schema.get("description")
        and not path.startswith("metadata")
        and not path.endswith(("[]", "*"))
    ]
    assert bare == []


def test_unknown_fields_are_kept_in_free_objects_only() -> None:
    free = {
        path: schema
        for name in NAMES
        for path, schema in walk(schema_of(name))
        if schema.get("x-kubernetes-preserve-unknown-fields")
    }
    in_task = ["args", "tools[]", "chatTemplateKwargs"]
    assert list(free) == ["spec.trainer.config", *(f"spec.task.{name}" for name in in_task)]
    # Else the API server keeps a path for each level of what is in them.
    assert {schema["x-kubernetes-map-type"] for schema in free.values()} == {"atomic"}


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_person_writes_has_bounds(name: str) -> None:
    """What has none ends somewhere else: in the memory of whoever reads it, or with a number that nothing can hold."""
    for path, schema in walk(at(schema_of(name), "spec"), "spec"):
        kind = schema.get("type")
        if kind in ("integer", "number"):
            assert -(2**53) < schema["minimum"] < schema["maximum"] < 2**53, path
        elif kind == "array":
            assert schema["maxItems"] <= 64, path
        elif kind == "string":
            assert schema.get("maxLength", 0 if "enum" in schema else math.inf) <= 16384, path
        elif "properties" not in schema:
            assert kind != "object" or schema["maxProperties"] <= 64, path


def names_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in fields_of(model).items():
        inside = f"{path}.{name}".lstrip(".")
        yield inside
        kind = type_of(field)
        while kind.is_list or kind.is_mapping:
            inside += "[]" if kind.is_list else ".*"
            kind = kind.item
        if kind.model is not None:
            yield from names_of(kind.model, inside)


@pytest.mark.parametrize(
    ("name", "model"), [("rltrainingruns", RLTrainingRun), ("rltrainingprofiles", RLTrainingProfile)]
)
def test_every_field_of_the_models_is_there(name: str, model: type[BaseModel]) -> None:
    wanted = {path for path in names_of(model) if not path.startswith("metadata")}
    there = {path for path, _ in walk(schema_of(name)) if path}
    assert wanted - there == set()


def test_a_null_is_allowed_where_the_model_allows_it() -> None:
    schema = schema_of("rltrainingruns")
    assert at(schema, "spec.checkpoint")["nullable"] is True
    assert "nullable" not in at(schema, "spec.sampler")
    effect = at(schema_of("rltrainingprofiles"), "spec.pools[].tolerations[].effect")
    assert effect["enum"] == ["NoSchedule", "PreferNoSchedule", "NoExecute", None]


def test_bounds_and_choices() -> None:
    schema = schema_of("rltrainingruns")
    clip = at(schema, "spec.algorithm.clip.low")
    assert (clip["minimum"], clip["exclusiveMinimum"], clip["maximum"]) == (0, True, 1)
    assert "exclusiveMaximum" not in clip
    assert at(schema, "spec.workload")["enum"] == ["Job", "Cluster", "Service"]
    betas = at(schema, "spec.algorithm.optimizer.betas")
    assert (betas["minItems"], betas["maxItems"]) == (2, 2)
    assert at(schema, "spec.task.rewards[].function")["pattern"].startswith("^[A-Za-z_]")
    duration = at(schema, "spec.stop.maxDuration")
    assert duration["x-kubernetes-int-or-string"] is True
    assert duration["x-kubernetes-validations"][0]["rule"].startswith("type(self) == int ? self > 0")
    grace = at(schema, "spec.scheduling.preemptionGracePeriod")
    assert grace["x-kubernetes-validations"][0]["rule"].startswith("type(self) == int ? self >= 0")


def test_defaults_stand_where_a_profile_has_no_say() -> None:
    schema = schema_of("rltrainingruns")
    defaulted = {path for path, part in walk(schema["properties"]["spec"]) if "default" in part}
    groups = {path.partition(".")[0] for path in defaulted}
    assert groups == {"workload", "seed", "model", "task", "algorithm", "warmStart", "sampler", "buffer"} | {
        "secrets",
        "stop",
        "suspend",
        "trainer",
    }
    assert {path for path in defaulted if path.startswith("sampler")} == {"sampler", "sampler.replicas"}
    assert "Default: 64." in at(schema, "spec.sampler.maxSequences")["description"]
    # An operator of before it came may still read what the API server has filled in.
    assert not {"task.onLongPrompt", "checkpoint.asynchronous"} & defaulted


def test_a_profile_gives_defaults_for_exactly_the_other_groups() -> None:
    defaults = at(schema_of("rltrainingprofiles"), "spec.defaults")
    assert set(defaults["properties"]) == set(PROFILE_GROUPS) <= set(fields_of(RunSpec))
    assert "replicas" not in defaults["properties"]["sampler"]["properties"]
    assert [path for path, part in walk(defaults) if path and ("default" in part or "required" in part)] == []


def fill(schema: Schema, value: Any) -> Any:
    """`value` with the schema's defaults, as the API server fills them in."""
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name not in value and "default" in part:
                value[name] = json.loads(json.dumps(part["default"]))
            if name in value:
                value[name] = fill(part, value[name])
    if isinstance(value, list):
        return [fill(schema["items"], item) for item in value]
    return value


@pytest.mark.parametrize(
    "more", [{}, {"model": {"source": "tiny", "tiny": {}}, "warmStart": {}, "checkpoint": None}]
)
def test_defaults_are_those_of_the_models(more: dict[str, Any]) -> None:
    spec = {"model": {"source": "tiny"}, "task": {"environment": "prompts", "file": "x.jsonl"}, **more}
    document = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingRun", "metadata": {"name": "x"}}
    written = RLTrainingRun.model_validate({**document, "spec": spec})
    filled = fill(schema_of("rltrainingruns"), json.loads(json.dumps({**document, "spec": spec})))
    assert filled["spec"]["algorithm"]["optimizer"]["betas"] == [0.9, 0.999]
    assert RLTrainingRun.model_validate(filled) == written


def test_what_may_change_on_a_run_that_exists() -> None:
    frozen = {rule["fieldPath"].removeprefix(".") for rule in frozen_rules()}
    whole = set(fields_of(RunSpec)) - {"suspend", "stop", "cleanup", "sampler", "scheduling"}
    sampler = {f"sampler.{name}" for name in fields_of(SamplerSpec)} - {"sampler.replicas"}
    scheduling = {
        f"scheduling.{name}"
        for name in fields_of(SchedulingSpec)
        if name not in ("priorityClass", "workloadPriorityClass")
    }
    assert frozen == whole | sampler | scheduling
    for rule in frozen_rules():
        assert "oldSelf" in rule["rule"]
        assert rule["message"].startswith(f"{rule['fieldPath'].removeprefix('.')} cannot be changed")
        assert all(path in rule["message"] for path in MUTABLE)


def test_every_rule_has_a_sentence_and_a_field_that_exists() -> None:
    for path, rules in RUN_RULES.items():
        schema = at(schema_of("rltrainingruns"), path)
        for rule in rules:
            assert "\n" not in rule["rule"] + rule["message"]
            at(schema, rule["fieldPath"].removeprefix("."))
            assert "allowed" in rule["message"] or "missing" in rule["message"] or "cannot" in rule["message"]


def test_columns_scale_and_names() -> None:
    run, profile = definitions()["rltrainingruns"]["spec"], definitions()["rltrainingprofiles"]["spec"]
    assert (run["scope"], profile["scope"]) == ("Namespaced", "Cluster")
    assert run["names"]["shortNames"][0] == "rlrun"
    columns = [c["name"] for c in run["versions"][0]["additionalPrinterColumns"] if not c.get("priority")]
    assert columns == ["Phase", "Step", "Reward", "Tokens/s", "Ready", "Samplers", "Attempt", "Age"]
    wide = {
        c["name"]: c["jsonPath"] for c in run["versions"][0]["additionalPrinterColumns"] if c.get("priority")
    }
    status = schema_of("rltrainingruns")["properties"]["status"]
    for path in ("mode", "measuredStepSeconds", "predictedStepSeconds", "wanted.mode"):
        assert f".status.placement.{path}" in wide.values()
        assert at(status, f"placement.{path}")
    scale = run["versions"][0]["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.sampler.replicas"
    assert at(schema_of("rltrainingruns"), "spec.sampler")["properties"]["replicas"]["default"] == 1


def test_main_writes_a_folder_or_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "chart" / "crds"
    for _ in ("new", "there already"):
        main([str(folder)])
        assert sorted(path.stem for path in folder.iterdir()) == NAMES
    main([])
    printed = [document for _, document in load_documents(capsys.readouterr().out, "output")]
    assert printed == [load_documents(dump_yaml(one), "it")[0][1] for one in definitions().values()]


def test_the_module_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["crd", str(tmp_path)])
    runpy.run_path(str(Path(rl_api.crd.__file__)), run_name="__main__")
    assert len(list(tmp_path.iterdir())) == len(NAMES)


def test_braces_of_helm_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl_api.crd, "definitions", lambda: {"x": {"description": "write {{ for a brace"}})
    with pytest.raises(AssertionError, match="Helm"):
        render("x")


def test_status_has_the_bounds_that_the_operator_keeps() -> None:
    status = at(schema_of("rltrainingruns"), "status")
    assert "maxItems" not in at(status, "conditions")
    assert at(status, "attempts")["maxItems"] == MOST_ATTEMPTS
    assert at(status, "attempts")["x-kubernetes-list-map-keys"] == ["number"]
    assert at(status, "conditions[].lastTransitionTime")["format"] == "date-time"
    assert SchemaWriter().write(ModelSpec, "spec.model")["required"] == ["source"]
