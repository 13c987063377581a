"""The rules across fields as properties: what they refuse and what they let through."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api import RunSpec, check_document, check_rules
from rl_api.paths import render_path
from rl_api.roles import Transport
from rl_api.rules import CLUSTER_RULES, RULES, free_port

GOOD: dict[str, Any] = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingRun",
    "metadata": {"name": "good"},
    "spec": {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
    },
}
SMALL = st.integers(1, 12)
ENGINES = st.sampled_from(["torch", "vllm"])


def broken(**parts: Any) -> list[str]:
    spec = RunSpec.model_validate(GOOD["spec"] | parts, by_alias=True, by_name=False)
    return [render_path(problem.path) for problem in check_rules(spec)]


@given(prompts=SMALL, group=st.integers(2, 8), replicas=SMALL, batches=SMALL)
def test_every_learner_gets_the_same_number_of_sequences_of_every_minibatch(
    prompts: int, group: int, replicas: int, batches: int
) -> None:
    algorithm = {"promptsPerStep": prompts, "groupSize": group, "miniBatches": batches}
    even = prompts * group % (replicas * batches) == 0
    assert (broken(algorithm=algorithm, learner={"replicas": replicas}) == []) is even


@given(prompts=SMALL, capacity=SMALL)
def test_the_buffer_holds_a_step(prompts: int, capacity: int) -> None:
    paths = broken(algorithm={"promptsPerStep": prompts}, buffer={"capacity": capacity})
    assert paths == ([] if capacity >= prompts else ["spec.buffer.capacity"])


@given(replicas=SMALL, least=SMALL)
def test_a_run_starts_with_at_most_all_samplers(replicas: int, least: int) -> None:
    paths = broken(sampler={"replicas": replicas, "minReplicas": least})
    assert paths == ([] if least <= replicas else ["spec.sampler.minReplicas"])


@given(heads=SMALL, key_heads=SMALL, factor=SMALL, extra=st.integers(0, 3))
def test_heads_share_the_width(heads: int, key_heads: int, factor: int, extra: int) -> None:
    hidden = 8 * heads * factor + extra
    tiny = {"hiddenSize": hidden, "heads": heads, "kvHeads": key_heads}
    paths = broken(model={"source": "tiny", "tiny": tiny})
    assert ("spec.model.tiny.hiddenSize" in paths) is (hidden % (2 * heads) != 0)
    assert ("spec.model.tiny.kvHeads" in paths) is (heads % key_heads != 0)


@pytest.mark.parametrize(
    "template",
    ["{question}", "{{literally}} {answer!r:>9}", "{metadata[difficulty][n]} {metadata.x}", "no keys"],
)
def test_templates_that_are_good(template: str) -> None:
    task = GOOD["spec"]["task"] | {"promptTemplate": template, "answerTemplate": template}
    assert broken(task=task) == []


@pytest.mark.parametrize("template", ["{}", "{0}", "{Question}", "{", "}", "{question"])
def test_templates_that_are_not(template: str) -> None:
    assert broken(task=GOOD["spec"]["task"] | {"promptTemplate": template}) == ["spec.task.promptTemplate"]


def test_what_is_no_preset_may_be_longer_and_use_vllm() -> None:
    assert broken(model={"source": "org/model"}, sampler={"maxNewTokens": 100_000, "engine": "vllm"}) == []


@given(longest=st.none() | st.integers(2, 12), completion=SMALL, evaluation=st.none() | SMALL, engine=ENGINES)
def test_sequences_hold_a_prompt_and_a_completion(
    longest: int | None, completion: int, evaluation: int | None, engine: str
) -> None:
    task = GOOD["spec"]["task"] | {"evaluation": {"maxNewTokens": evaluation}}
    sampler = {"maxModelLen": longest, "maxNewTokens": completion, "engine": engine}
    wrong = longest is not None and (engine != "vllm" or longest <= max(completion, evaluation or 0))
    assert set(broken(task=task, sampler=sampler)) == ({"spec.sampler.maxModelLen"} if wrong else set())


@given(tensor=SMALL, pipeline=SMALL, accelerators=st.none() | st.integers(0, 12), engine=ENGINES)
def test_each_part_of_a_sampler_has_an_accelerator(
    tensor: int, pipeline: int, accelerators: int | None, engine: str
) -> None:
    sampler = {"tensorParallelSize": tensor, "pipelineParallelSize": pipeline, "engine": engine}
    paths = broken(sampler=sampler | {"resources": {"accelerators": accelerators}})
    too_few = engine == "vllm" and accelerators not in (None, 0) and accelerators < tensor * pipeline
    assert ("spec.sampler.resources.accelerators" in paths) is too_few
    assert ("spec.sampler.pipelineParallelSize" in paths) is (engine == "torch" and pipeline > 1)


def test_a_program_of_ones_own_divides_as_it_likes() -> None:
    sampler = {"engine": "vllm", "tensorParallelSize": 4, "resources": {"accelerators": 2}}
    assert broken(sampler=sampler, trainer={"kind": "command", "command": ["a"]}) == []


@pytest.mark.parametrize(
    ("engine", "dtype", "good"),
    [("vllm", "bfloat16", True), ("vllm", "float32", False), ("torch", "bfloat16", False)],
)
def test_quantised_weights_are_made_of_bfloat16_by_vllm(engine: str, dtype: str, good: bool) -> None:
    model, sampler = {"source": "tiny", "dtype": dtype}, {"engine": engine, "quantization": "fp8"}
    assert broken(model=model, sampler=sampler) == ([] if good else ["spec.sampler.quantization"])


@pytest.mark.parametrize("transport", get_args(Transport))
@pytest.mark.parametrize("encryption", [False, True])
@pytest.mark.parametrize("kind", ["rltrain", "command"])
def test_what_is_to_be_encrypted_is_not_broadcast(transport: str, encryption: bool, kind: str) -> None:
    trainer = {"kind": kind, **({"command": ["python"]} if kind == "command" else {})}
    parts = {
        "trainer": trainer,
        "weightSync": {"transport": transport},
        "scheduling": {"encryption": encryption},
        "learner": {"lora": {}},
        "placement": {"mode": "collocated" if transport == "ipc" else "auto"},
    }
    document = GOOD | {"spec": GOOD["spec"] | parts}
    problems = [problem.path for problem in check_document(document, "cluster")[1]]
    clear = transport == "collective" and encryption and kind == "rltrain"
    assert (("spec", "weightSync", "transport") in problems) is clear
    assert check_document(document)[1] == [], "on one machine nothing is encrypted"


@pytest.mark.parametrize(
    "parts",
    [
        {"weightSync": {"transport": "adapter"}},
        {"learner": {"fsdpSize": 2}},
        {"sampler": {"maxModelLen": 300}},
    ],
)
def test_what_a_profile_may_add_is_left_to_who_knows_it(parts: dict[str, Any]) -> None:
    document = GOOD | {"spec": GOOD["spec"] | parts}
    assert len(check_document(document)[1]) == 1
    assert check_document(document, "profile")[1] == []
    document = GOOD | {"spec": GOOD["spec"] | parts | {"buffer": {"capacity": 1}}}
    assert len(check_document(document, "profile")[1]) == 1, "no profile mends that"


def test_rewards_of_every_rule_are_valid() -> None:
    rewards = [
        {"rule": "exactMatch", "right": 5, "wrong": -5},
        {"rule": "number", "weight": 0.5},
        {"rule": "regex", "pattern": "<b>(.*)</b>"},
        {"rule": "task"},
        {"rule": "function", "function": "my.rewards:score", "timeout": "2s"},
        {"rule": "fraction"},
        {"rule": "model", "right": 2},
    ]
    model = {
        "source": "org/judge",
        "kind": "judge",
        "answers": ["Yes", "No"],
        "template": "{prompt} {completion}?",
    }
    assert broken(task=GOOD["spec"]["task"] | {"rewards": rewards, "rewardModel": model}) == []


@pytest.mark.parametrize("pattern", ["[0-9", "(?:" + "(a{0,999}){0,999}" * 40 + ")", "[[a-z]--[aeiou]]"])
def test_a_pattern_is_not_compiled_where_it_is_checked(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some take minutes, which nobody else may have to wait for; and what is wrong with one, only the trainer knows."""
    before = re.compile
    seen: list[object] = []
    monkeypatch.setattr(re, "compile", lambda text, *more: seen.append(text) or before(text, *more))
    assert broken(task=GOOD["spec"]["task"] | {"rewards": [{"rule": "regex", "pattern": pattern}]}) == []
    assert pattern not in seen


def test_every_rule_is_a_sentence() -> None:
    for rule in RULES + CLUSTER_RULES:
        assert (rule.__doc__ or "").endswith(".")


@pytest.mark.parametrize(
    ("port", "free"),
    [(0, True), (6379, False), (10001, False), (10002, False), (19999, False), (20000, True)],
)
def test_ports_of_ray_are_taken_on_a_cluster(port: int, free: bool) -> None:
    document = GOOD | {"spec": GOOD["spec"] | {"server": {"port": port}}}
    run, problems = check_document(document)
    assert run is not None, problems
    assert [render_path(problem.path) for problem in free_port(run.spec)] == ["spec.server.port"] * (not free)


def on_a_cluster(**parts: Any) -> list[str]:
    storage = {"storage": {"s3": "s3://bucket/runs"}}
    document = GOOD | {"spec": GOOD["spec"] | {"checkpoint": storage} | parts}
    return [render_path(problem.path) for problem in check_document(document, "cluster")[1]]


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("checkpoints", True),
        ("a/b..c", True),
        ("/mnt/runs", True),
        ("/var/lib/runs", True),
        ("/mnt", False),
        ("/mnts/runs", False),
        ("/etc/runs", False),
        ("/mnt/../etc", False),
        ("..", False),
        ("a/..", False),
        ("~/runs", False),
    ],
)
def test_folders_of_checkpoints_on_a_cluster(path: str, good: bool) -> None:
    assert on_a_cluster(checkpoint={"storage": {"path": path}}) == ["spec.checkpoint.storage.path"] * (
        not good
    )


@pytest.mark.parametrize(
    ("source", "good"),
    [
        ("tiny", True),
        ("org/model", True),
        ("s3://bucket/model", True),
        ("/models/own", True),
        ("/models/../own", False),
        ("models/own/last", False),
        ("./own", False),
        ("../own", False),
    ],
)
def test_models_on_a_cluster(source: str, good: bool) -> None:
    assert on_a_cluster(model={"source": source}) == ["spec.model.source"] * (not good)
    task = GOOD["spec"]["task"] | {"rewards": [{"rule": "model"}], "rewardModel": {"source": source}}
    assert on_a_cluster(task=task) == ["spec.task.rewardModel.source"] * (not good)


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
PATHS = st.sampled_from(
    [
        ("apiVersion",),
        ("metadata",),
        ("metadata", "labels"),
        ("spec",),
        ("spec", "seed"),
        ("spec", "model"),
        ("spec", "task", "args"),
        ("spec", "task", "rewards"),
        ("spec", "task", "promptTemplate"),
        ("spec", "algorithm"),
        ("spec", "algorithm", "optimizer"),
        ("spec", "algorithm", "learningRate"),
        ("spec", "sampler", "stop"),
        ("spec", "checkpoint"),
        ("spec", "placement", "timeout"),
        ("status",),
    ]
)


@given(st.lists(st.tuples(PATHS, PLAIN), min_size=1, max_size=3))
def test_no_value_whatever_breaks_the_check(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    document = deepcopy(GOOD)
    for path, value in changes:
        container: Any = document
        for part in path[:-1]:
            container = container.setdefault(part, {}) if isinstance(container, dict) else {}
        if isinstance(container, dict):
            container[path[-1]] = value
    resource, problems = check_document(document)
    assert (resource is None) == bool(problems)
    for problem in problems:
        assert "\n" not in problem.sentence or "'" in problem.sentence
        assert (
            "allowed" in problem.sentence or "required" in problem.sentence or "unknown" in problem.sentence
        )
