"""The definitions in a real kube-apiserver: what it refuses and with which words, defaults, changes, columns, scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kube import KubeApi

from rl_api.crd import definitions
from rl_api.crd_rules import MUTABLE
from rl_api.documents import dump_yaml, load_documents
from rl_api.validation import KINDS, check_document

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "tests" / "invalid").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
RUN: dict[str, Any] = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingRun",
    "metadata": {"name": "run"},
    "spec": {
        "model": {"source": "tiny"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum", "args": {"min_terms": 2}},
        "scheduling": {"queue": "team-a"},
    },
}


@pytest.fixture(scope="module")
def namespace(kube: KubeApi) -> str:
    return kube.new_namespace("crd")


@pytest.fixture
def run(kube: KubeApi) -> str:
    """Namespace of a run called `run`, as a user applied it."""
    name = kube.new_namespace("crd-run")
    kube.apply(RUN, namespace=name)
    return name


def patch(kube: KubeApi, namespace: str, change: dict[str, Any], *more: str) -> Any:
    arguments = ("patch", "rlrun", "run", "-n", namespace, "--type=merge", "-p", json.dumps(change), *more)
    return kube.kubectl(*arguments, check=False)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_the_api_server_refuses_it_with_the_sentence(kube: KubeApi, namespace: str, manifest: Path) -> None:
    first, *second = manifest.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    scope = () if manifest.stem.startswith("profile-") else (f"--namespace={namespace}",)
    done = kube.kubectl("create", "--dry-run=server", *scope, "-f", str(manifest), check=False)
    if second == ["operator:"]:
        # Without --dry-run it would be stored: the operator says the sentence.
        assert done.returncode == 0 or "does not match the namespace" in done.stderr, done.stderr
        return
    assert done.returncode != 0, "accepted"
    if second:
        assert second[0].removeprefix("apiserver: ") in done.stderr
    else:
        path, _, sentence = first.partition(": ")
        assert f"{path}: Invalid value" in done.stderr
        assert sentence in done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_taken_and_stays_what_it_is(kube: KubeApi, namespace: str, example: Path) -> None:
    for _, document in load_documents(example.read_text(encoding="utf-8"), example.name):
        scope = () if document["kind"] == "RLTrainingProfile" else (f"--namespace={namespace}",)
        text = dump_yaml(document)
        done = kube.kubectl("create", "--dry-run=server", *scope, "-o", "json", "-f", "-", stdin=text)
        stored = json.loads(done.stdout)
        if document["kind"] not in KINDS:
            continue
        written, problems = check_document(document)
        assert problems == []
        read, problems = check_document(
            {key: stored[key] for key in ("apiVersion", "kind", "spec")}
            | {"metadata": {"name": stored["metadata"]["name"]}}
        )
        assert problems == []
        assert read is not None
        assert written is not None
        assert read.spec == written.spec


def test_client_side_apply_takes_the_definitions(kube: KubeApi) -> None:
    text = "---\n".join(dump_yaml(definition) for definition in definitions().values())
    done = kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert done.stdout.count("rltrain.dev") == 3


def test_defaults_are_shown_and_the_profile_keeps_its_say(kube: KubeApi, run: str) -> None:
    spec = kube.get("rlrun", "run", "-n", run)["spec"]
    assert spec["algorithm"]["groupSize"] == 8
    assert spec["algorithm"]["optimizer"]["betas"] == [0.9, 0.999]
    assert spec["task"]["rewards"][0]["rule"] == "exactMatch"
    assert (spec["workload"], spec["suspend"], spec["stop"]["maxSteps"]) == ("Job", False, 100)
    assert spec["sampler"] == {"replicas": 1}
    assert not {"learner", "checkpoint", "placement", "retry"} & set(spec)


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": True},
        {"sampler": {"replicas": 3}},
        {"stop": {"maxSteps": 7, "maxDuration": 3600}},
        {"cleanup": {"ttlAfterFinished": "1h"}},
        {"scheduling": {"priorityClass": "research"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_may_change_on_a_run_that_exists(kube: KubeApi, run: str, change: dict[str, Any]) -> None:
    done = patch(kube, run, {"spec": change})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("profile", {"profile": "h100"}),
        ("workload", {"workload": "Cluster"}),
        ("image", {"image": "other:1"}),
        ("seed", {"seed": 7}),
        ("model", {"model": {"dtype": "bfloat16"}}),
        ("task", {"task": {"args": {"min_terms": 3}}}),
        ("algorithm", {"algorithm": {"kl": {"coefficient": 0.1}}}),
        ("warmStart", {"warmStart": {}}),
        ("sampler.maxNewTokens", {"sampler": {"maxNewTokens": 9}}),
        ("sampler.stop", {"sampler": {"stop": ["END"]}}),
        ("sampler.pools", {"sampler": {"pools": ["h100"]}}),
        ("learner", {"learner": {"replicas": 2}}),
        ("buffer", {"buffer": {"maxStaleness": 2}}),
        ("placement", {"placement": {"timeout": "90s"}}),
        ("weightSync", {"weightSync": {"everySteps": 2}}),
        ("checkpoint", {"checkpoint": {"keep": 1}}),
        ("scheduling.queue", {"scheduling": {"queue": "team-b"}}),
        ("retry", {"retry": {"limit": 1}}),
        ("server", {"server": {"port": 9000}}),
    ],
)
def test_nothing_else_may(kube: KubeApi, run: str, path: str, change: dict[str, Any]) -> None:
    done = patch(kube, run, {"spec": change})
    assert done.returncode != 0
    assert f"{path} cannot be changed on a run that exists: only {', '.join(MUTABLE[:-1])}" in done.stderr


def test_applying_the_same_again_changes_nothing(kube: KubeApi, run: str) -> None:
    before = kube.get("rlrun", "run", "-n", run)["metadata"]
    kube.apply(RUN, namespace=run)
    after = kube.get("rlrun", "run", "-n", run)["metadata"]
    assert (after["generation"], after["resourceVersion"]) == (
        before["generation"],
        before["resourceVersion"],
    )


def test_null_is_taken_where_it_means_something(kube: KubeApi, namespace: str) -> None:
    document = json.loads(json.dumps(RUN))
    document["spec"] |= {"checkpoint": None, "warmStart": None, "image": None}
    done = kube.kubectl(
        "create",
        "--dry-run=server",
        f"--namespace={namespace}",
        "-o",
        "json",
        "-f",
        "-",
        stdin=dump_yaml(document),
    )
    spec = json.loads(done.stdout)["spec"]
    assert spec["checkpoint"] is None
    assert spec["image"] is None


def test_null_stays_null_when_it_is_applied_again(kube: KubeApi) -> None:
    """Server-side; what client-side apply loses, tests/integration/test_operator_loop.py shows."""
    namespace = kube.new_namespace("crd-null")
    document = json.loads(json.dumps(RUN))
    document["spec"]["checkpoint"] = None
    for note in ("first", "first", "second"):
        document["metadata"]["annotations"] = {"example.com/note": note}
        scope = ("apply", "--server-side", f"--namespace={namespace}", "-f", "-")
        kube.kubectl(*scope, stdin=dump_yaml(document))
        spec = kube.get("rlrun", "run", "-n", namespace)["spec"]
        assert "checkpoint" in spec
        assert spec["checkpoint"] is None


def test_a_run_that_serves_is_another_kind(kube: KubeApi, namespace: str) -> None:
    document = json.loads(json.dumps(RUN))
    document["spec"]["workload"] = "Service"
    arguments = ("create", "--dry-run=server", f"--namespace={namespace}", "-f", "-")
    done = kube.kubectl(*arguments, stdin=dump_yaml(document), check=False)
    assert "spec.workload: Invalid value" in done.stderr
    assert (
        "found 'Service', allowed: Job or Cluster; to serve a policy, apply an RLPolicyService" in done.stderr
    )


def test_scale_is_the_number_of_samplers(kube: KubeApi, run: str) -> None:
    kube.kubectl("scale", "rlrun/run", "-n", run, "--replicas=5")
    assert kube.get("rlrun", "run", "-n", run)["spec"]["sampler"]["replicas"] == 5
    done = kube.kubectl("scale", "rlrun/run", "-n", run, "--replicas=0", check=False)
    assert "should be greater than or equal to 1" in done.stderr


def test_the_columns_say_how_it_goes(kube: KubeApi, run: str) -> None:
    status = {
        "phase": "Training",
        "progress": {
            "step": 3,
            "reward": 0.25,
            "tokensPerSecond": 1200.0,
            "etaSeconds": None,
            "updatedAt": None,
        },
        "roles": {"sampler": {"desired": 1, "ready": 1, "reason": None}},
        "attempts": [{"number": 1}, {"number": 2, "endTime": None}],
        "conditions": [{"type": "Accepted", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
    }
    done = patch(kube, run, {"status": status}, "--subresource=status")
    assert done.returncode == 0, done.stderr
    header, row = kube.kubectl("get", "rlrun", "-n", run).stdout.splitlines()
    assert header.split() == [
        "NAME",
        "PHASE",
        "STEP",
        "REWARD",
        "TOKENS/S",
        "READY",
        "SAMPLERS",
        "ATTEMPT",
        "AGE",
    ]
    assert row.split()[:8] == ["run", "Training", "3", "0.25", "1200", "1", "1", "2"]


def test_status_is_not_written_with_the_spec(kube: KubeApi, run: str) -> None:
    patch(kube, run, {"status": {"phase": "Succeeded"}})
    assert "status" not in kube.get("rlrun", "run", "-n", run)


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client-side", "server-side"])
@pytest.mark.parametrize(
    ("field", "below"),
    [
        ("f:task", {"task": {"args": "@"}}),
        ("f:task", {"task": {"chatTemplateKwargs": "@"}}),
        ("f:task", {"task": {"tools": ["@"]}}),
        ("f:trainer", {"trainer": {"kind": "command", "command": ["python"], "config": "@"}}),
    ],
    ids=["args", "chatTemplateKwargs", "tools", "config"],
)
def test_who_manages_a_free_object_manages_it_as_one(
    kube: KubeApi, field: str, below: dict[str, Any], how: tuple[str, ...]
) -> None:
    """Levels in it would be paths of the object's managed fields, and cost the square of their number at each write."""

    def managed(value: object) -> Any:
        spec = json.loads(json.dumps(below).replace('"@"', json.dumps(value)))
        task = {**RUN["spec"]["task"], **spec.get("task", {})}
        run = {**RUN, "spec": {**RUN["spec"], **spec, "task": task}}
        namespace = kube.new_namespace("crd-managed")
        kube.kubectl("apply", *how, "-n", namespace, "-f", "-", stdin=json.dumps(run))
        (one,) = kube.get("rlrun", "run", "-n", namespace, "--show-managed-fields")["metadata"][
            "managedFields"
        ]
        return one["fieldsV1"]["f:spec"][field]

    deep: object = 1
    for _ in range(200):
        deep = {"a": deep, "b": [deep]} if isinstance(deep, int) else {"a": deep}
    assert managed({"deep": deep}) == managed({"flat": 1})


def test_explain_reads_well(kube: KubeApi) -> None:
    text = kube.kubectl("explain", "rlrun.spec.sampler.maxNewTokens").stdout
    assert "Longest completion in tokens. Default: 256." in text
    text = kube.kubectl("explain", "rlprofile.spec.defaults.checkpoint").stdout
    assert "everySteps" in text


def test_short_names_and_category(kube: KubeApi, run: str) -> None:
    for name in ("rlrun", "rlruns", "rltrainingruns", "rltrain"):
        assert "run" in kube.kubectl("get", name, "-n", run, "-o", "name").stdout
