from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api import InvalidConfig, check_document
from rl_api.overrides import apply_override, parse_override

GOOD: dict[str, Any] = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingRun",
    "metadata": {"name": "good"},
    "spec": {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "warmStart": None,
    },
}


def apply_overrides(document: dict[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    changed = deepcopy(document)
    for text in texts:
        apply_override(changed, parse_override(text))
    return changed


def get(document: Any, *path: str | int) -> Any:
    for part in path:
        document = document[part]
    return document


@pytest.mark.parametrize(
    ("texts", "path", "value"),
    [
        (["sampler.replicas=2"], ("spec", "sampler", "replicas"), 2),
        (["spec.sampler.replicas=2"], ("spec", "sampler", "replicas"), 2),
        (["metadata.name=other"], ("metadata", "name"), "other"),
        (["seed=3", "seed=4"], ("spec", "seed"), 4),
        (["algorithm.learningRate=3e-4"], ("spec", "algorithm", "learningRate"), 3e-4),
        (["stop.maxDuration=1.5h"], ("spec", "stop", "maxDuration"), "1.5h"),
        (["checkpoint=null"], ("spec", "checkpoint"), None),
        (["checkpoint="], ("spec", "checkpoint"), None),
        (["suspend=true"], ("spec", "suspend"), True),
        (["warmStart.maxSteps=5"], ("spec", "warmStart"), {"maxSteps": 5}),
        (["task.evaluation={samples: 8}"], ("spec", "task", "evaluation"), {"samples": 8}),
        # free objects take any key
        (["task.args.min_terms=2"], ("spec", "task", "args"), {"min_terms": 2}),
        (["task.args.a.b=1", "task.args.a.c=2"], ("spec", "task", "args"), {"a": {"b": 1, "c": 2}}),
        (["task.args.a=[1, 2]", "task.args.a[1]=3"], ("spec", "task", "args", "a"), [1, 3]),
        (["task.args.a=[1, 2, 3]", "task.args.a[0]=4"], ("spec", "task", "args", "a"), [4, 2, 3]),
        (["task.args.a=[{}]", "task.args.a[0].b=4"], ("spec", "task", "args", "a"), [{"b": 4}]),
        (["task.args.a=[]", "task.args.a[0].b=4"], ("spec", "task", "args", "a"), [{"b": 4}]),
        (["task.args.7=x"], ("spec", "task", "args"), {"7": "x"}),
        (["metadata.labels.team=blue"], ("metadata", "labels"), {"team": "blue"}),
        # lists: by position, starting from the default, growing by one
        (["task.rewards[0].right=5"], ("spec", "task", "rewards", 0, "right"), 5),
        (["task.rewards.0.wrong=-5"], ("spec", "task", "rewards", 0, "wrong"), -5),
        (["task.rewards[1].rule=number"], ("spec", "task", "rewards", 1), {"rule": "number"}),
        (
            ["task.rewards=[{rule: number}]", "task.rewards[0].right=5"],
            ("spec", "task", "rewards"),
            [{"rule": "number", "right": 5}],
        ),
        (["task.rewards=[{rule: number}]"], ("spec", "task", "rewards"), [{"rule": "number"}]),
        (["algorithm.optimizer.betas[1]=0.95"], ("spec", "algorithm", "optimizer", "betas"), [0.9, 0.95]),
        (["sampler.stop[0]=END", "sampler.stop[1]=."], ("spec", "sampler", "stop"), ["END", "."]),
        # text fields take what YAML would read as something else
        (["image=1.0"], ("spec", "image"), "1.0"),
        (["task.systemPrompt=Answer: yes"], ("spec", "task", "systemPrompt"), "Answer: yes"),
        (["task.systemPrompt=a: b: c"], ("spec", "task", "systemPrompt"), "a: b: c"),
        (["task.systemPrompt='null'"], ("spec", "task", "systemPrompt"), "null"),
        (["task.systemPrompt=null"], ("spec", "task", "systemPrompt"), None),
        (["task.promptTemplate={question} ="], ("spec", "task", "promptTemplate"), "{question} ="),
        (["task.rewards[0].pattern=[0-9]+"], ("spec", "task", "rewards", 0, "pattern"), "[0-9]+"),
    ],
)
def test_values_go_where_they_belong(texts: list[str], path: tuple[str | int, ...], value: object) -> None:
    before = deepcopy(GOOD)
    changed = apply_overrides(GOOD, texts)
    assert get(changed, *path) == value
    assert before == GOOD
    assert get(changed, "spec", "model", "source") == "tiny"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sampler.replicas", "found no '=', allowed: path=value, such as sampler.replicas=2"),
        ("=2", "found '', allowed: a path such as sampler.replicas or task.rewards[0].weight"),
        ("a..b=2", "found 'a..b', allowed: a path such as sampler.replicas or task.rewards[0].weight"),
        ("kind=X", "kind cannot be set, allowed: fields of spec and metadata"),
        ("status.phase=X", "status cannot be set, allowed: fields of spec and metadata"),
        ("spec={}", "spec cannot be set as a whole, allowed: its fields, one by one"),
        ("sampler.replica=2", "spec.sampler.replica: unknown field, did you mean replicas?"),
        (
            "replicas=2",
            "spec.replicas: unknown field, did you mean spec.task.simulators.replicas, "
            "spec.task.rewardModel.replicas or spec.sampler.replicas?",
        ),
        ("groupsize=2", "spec.groupsize: unknown field, did you mean spec.algorithm.groupSize?"),
        ("algorithm.7=2", None),
        ("seed.x=2", "spec.seed is a whole number >= 0 and <= 4294967295 and has no fields"),
        (
            "task.rewards.rule=task",
            "spec.task.rewards is a list, allowed: spec.task.rewards[0] and so on, not 'rule'",
        ),
        (
            "task.rewards[2].rule=task",
            "spec.task.rewards: found position 2 in a list of 1 items, allowed: 0 to 1",
        ),
        ("task.rewards[2]={}", "spec.task.rewards: found position 2 in a list of 1 items, allowed: 0 to 1"),
        (
            "model.source.x=1",
            "spec.model.source is text of 1 to 896 characters on one line and has no fields",
        ),
        (
            "seed=[1",
            "the value is line 1, column 3: not valid YAML: expected ',' or ']', but got '<stream end>'",
        ),
        ("task.args.a=1\n---\n2", "the value is not valid YAML for one value: found '---' between several"),
    ],
)
def test_what_cannot_be_set_is_a_sentence(text: str, sentence: str | None) -> None:
    with pytest.raises(InvalidConfig) as caught:
        apply_overrides(GOOD, [text])
    assert str(caught.value).startswith(f"--set {text}: ")
    if sentence is not None:
        assert str(caught.value) == f"--set {text}: {sentence}"


@pytest.mark.parametrize(
    ("document", "text", "sentence"),
    [
        ({"spec": 5}, "seed=1", "spec: found 5 in the file, allowed: an object"),
        (
            {"spec": {"sampler": "x"}},
            "sampler.replicas=2",
            "spec.sampler: found 'x' in the file, allowed: an object",
        ),
        (
            {"spec": {"sampler": [1]}},
            "sampler.replicas=2",
            "spec.sampler: found a list in the file, allowed: an object",
        ),
        (
            {"spec": {"task": {"rewards": {}}}},
            "task.rewards[0]=x",
            "spec.task.rewards: found an empty object in the file, allowed: a list",
        ),
        (
            {"spec": {"task": {"rewards": [[]]}}},
            "task.rewards[0].right=5",
            "spec.task.rewards[0]: found an empty list in the file, allowed: an object",
        ),
        *(
            (
                {"spec": {"task": {"args": {"a": [1]}}}},
                f"task.args.a.{path}=2",
                "spec.task.args.a: found position 'b' in a list of 1 items, allowed: 0 to 1",
            )
            for path in ("b", "b.c")
        ),
    ],
)
def test_a_broken_document_is_said_to_be_broken(document: dict[str, Any], text: str, sentence: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        apply_overrides(document, [text])
    assert str(caught.value) == f"--set {text}: {sentence}"


@given(st.integers(1, 4096), st.floats(1e-9, 1.0), st.sampled_from(["fifo", "priority"]))
def test_numbers_and_choices_arrive_unchanged(replicas: int, rate: float, order: str) -> None:
    texts = [f"sampler.replicas={replicas}", f"algorithm.learningRate={rate!r}", f"buffer.order={order}"]
    run, problems = check_document(apply_overrides(GOOD, texts))
    assert problems == []
    assert run is not None
    spec: Any = run.spec
    assert (spec.sampler.replicas, spec.algorithm.learning_rate, spec.buffer.order) == (replicas, rate, order)


def test_an_override_keeps_its_text_for_messages() -> None:
    override = parse_override(" sampler.replicas =2")
    assert override.path == ("spec", "sampler", "replicas")
    assert override.text == " sampler.replicas =2"
    assert override.value == 2
