"""What a profile does not allow is refused as it is applied, with the sentence that the operator says, and whom to ask."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube import KubeApi

from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.refused import Refused

ROOT = Path(__file__).parents[2]
HELM = ROOT / ".tools" / "bin" / "helm"
DEADLINE = 90.0
DIGEST = f"registry.example/team/a@sha256:{'0' * 64}"
SPEC: dict[str, Any] = {
    "model": {"source": "tiny"},
    "task": {"environment": "reasoning-gym", "name": "chain_sum"},
    "checkpoint": {"storage": {"persistentVolumeClaim": "ckpt"}},
}
PROGRAM: dict[str, Any] = {"kind": "command", "command": ["python"]}
GAME: dict[str, Any] = {"environment": "tool-use", "name": "calculator", "rewards": [{"rule": "model"}]}
PROFILE: dict[str, Any] = {
    "pools": [{"name": "cpu"}],
    "images": {"cpu": "platform:1"},
    "queue": "shared",
    "contact": "#gpus",
    "defaults": {
        "scheduling": {"priorityClass": "default-class"},
        "checkpoint": {"storage": {"s3": "s3://given"}},
    },
    "limits": {
        "maxSamplers": 4,
        "maxLearners": 2,
        "maxTaskWorkers": 3,
        "maxDuration": "90m",
        "maxPreemptionGracePeriod": "5m",
    },
    "allow": {
        "namespaces": {
            "matchLabels": {"tenant": "a"},
            "matchExpressions": [
                {"key": "phase", "operator": "NotIn", "values": ["test"]},
                {"key": "tenant", "operator": "Exists"},
            ],
        },
        "images": {"patterns": ["registry.example/team/*"], "digestRequired": True},
        "priorityClasses": ["research"],
        "queues": ["team-a"],
        "modelSources": ["tiny", "Qwen/*", "s3://models/*"],
        "storage": {"s3": ["s3://team-a/*"]},
        "environment": {"secrets": ["hub-*"]},
        "endpoints": [
            {"url": url}
            for url in ("http://inference.*:8000", "http://[fd00::*]:8000", "https://*.example.org")
        ],
    },
}
SERVER: dict[str, Any] = {
    **{"url": "http://inference.serving:8000", "folder": "/mnt/weights"},
    **{"persistentVolumeClaim": "weights", "secret": "hub-key"},
}


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def create(
    kube: KubeApi, namespace: str, spec: dict[str, Any], *more: str
) -> subprocess.CompletedProcess[str]:
    text = json.dumps(manifest("RLTrainingRun", "run", spec))
    return kube.kubectl("create", "-n", namespace, *more, "-f", "-", stdin=text, check=False)


def until(so: Callable[[], bool]) -> None:
    """Wait for what the API server tells nobody: that it has seen a policy, or other labels of a namespace."""
    begun = time.monotonic()
    while not so():
        assert time.monotonic() - begun < DEADLINE, "the API server has not seen it"
        time.sleep(0.4)


def policies() -> list[dict[str, Any]]:
    """The chart's policy about profiles, and its binding."""
    command = [str(HELM), "template", "rltrain", str(ROOT / "charts" / "rltrain")]
    text = subprocess.run(
        [*command, "-s", "templates/admission-profiles.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.fixture(scope="module")
def admission(kube: KubeApi) -> Iterator[KubeApi]:
    """The API with the policy and two profiles; nothing of them is left for other tests."""
    kube.apply(manifest("RLTrainingProfile", "strict", PROFILE))
    kube.apply(manifest("RLTrainingProfile", "open", {"pools": [{"name": "cpu"}], "default": True}))
    kube.apply(*policies())
    namespace = kube.new_namespace("admission")
    wrong = SPEC | {"scheduling": {"priorityClass": "any"}}
    isolating = {"pools": [{"name": "cpu"}], "allow": {"isolation": "strict"}}
    kube.apply(manifest("RLTrainingProfile", "isolating", isolating))
    refused = "spec.scheduling.priorityClass: found 'any'"
    until(lambda: refused in create(kube, namespace, wrong, "--dry-run=server").stderr)
    yield kube
    kube.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "rltrain-profiles")
    kube.kubectl("delete", "rlprofile", "strict", "open", "isolating")


@pytest.fixture(scope="module")
def namespace(admission: KubeApi) -> str:
    name = admission.new_namespace("tenant")
    admission.kubectl("label", "namespace", name, "tenant=a")
    strict = SPEC | {"profile": "strict"}
    until(lambda: create(admission, name, strict, "--dry-run=server").returncode == 0)
    return name


@pytest.fixture(scope="module")
def run(admission: KubeApi, namespace: str) -> str:
    """Namespace of a run that was made as it is allowed."""
    done = create(admission, namespace, SPEC | {"profile": "strict"})
    assert done.returncode == 0, done.stderr
    return namespace


@pytest.fixture(scope="module")
def user(admission: KubeApi) -> tuple[str, str]:
    namespace = admission.new_namespace("user")
    text = subprocess.run(
        [
            str(HELM),
            "template",
            "rltrain",
            str(ROOT / "charts" / "rltrain"),
            "-s",
            "templates/user-roles.yaml",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    admission.apply(*[one for one in yaml.safe_load_all(text) if one])
    for role in ("rltrain-edit", "rltrain-view", "edit"):
        admission.kubectl(
            "create", "rolebinding", role, f"--clusterrole={role}", "--user=alice", "-n", namespace
        )
    done = create(admission, namespace, SPEC, "--as=alice")
    assert done.returncode == 0, done.stderr
    return namespace, "--as=alice"


def test_the_api_server_finds_nothing_wrong_with_the_policy(admission: KubeApi) -> None:
    # Which expressions do not fit the types is said in its status by a controller, where one runs; here each is evaluated.
    policy = admission.get("validatingadmissionpolicy", "rltrain-profiles")
    assert len(policy["spec"]["validations"]) == 20
    assert policy["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"image": "evil/image:1"}, "spec.image: found 'evil/image:1', allowed by profile strict: registry.example/team/*"),
        ({"image": "registryXexample/team/a:1"}, "allowed by profile strict: registry.example/team/*"),
        (
            {"image": "registry.example/team/a:1"},
            "spec.image: found 'registry.example/team/a:1', allowed by profile strict: an image with its digest, such as",
        ),
        (
            {"scheduling": {"priorityClass": "system-node-critical"}},
            "spec.scheduling.priorityClass: found 'system-node-critical', allowed by profile strict: research",
        ),
        (
            {"scheduling": {"workloadPriorityClass": "urgent"}},
            "spec.scheduling.workloadPriorityClass: found 'urgent', allowed by profile strict: none",
        ),
        ({"scheduling": {"queue": "team-b"}}, "spec.scheduling.queue: found 'team-b', allowed by profile strict: team-a"),
        (
            {"model": {"source": "other/model"}},
            "spec.model.source: found 'other/model', allowed by profile strict: tiny, Qwen/*, s3://models/*",
        ),
        (
            {"checkpoint": {"storage": {"s3": "s3://team-a2/x"}}},
            "spec.checkpoint.storage.s3: found 's3://team-a2/x', allowed by profile strict: s3://team-a/*",
        ),
        (
            {"trainer": PROGRAM | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
            "found 'NVIDIA_VISIBLE_DEVICES', allowed by profile strict: names by which no devices are handed out",
        ),
        ({"secrets": ["hub-a", "admin"]}, "found 'admin', allowed by profile strict: hub-*"),
        (
            {"task": SPEC["task"] | {"secrets": ["hub-a", "admin"]}},
            "found 'admin', allowed by profile strict: hub-*",
        ),
        (
            {"sampler": {"engine": "endpoint", "endpoint": SERVER | {"url": "http://evil:8000"}}},
            "spec.sampler.endpoint.url: found 'http://evil:8000', allowed by profile strict: http://inference.*:8000, "
            "http://[fd00::*]:8000, https://*.example.org.",
        ),
        (
            {"sampler": {"engine": "endpoint", "endpoint": SERVER | {"url": "https://evil/.example.org"}}},
            "spec.sampler.endpoint.url: found 'https://evil/.example.org', allowed by profile strict: http://inference.*",
        ),
        (
            {"sampler": {"engine": "endpoint", "endpoint": SERVER | {"secret": "admin"}}},
            "spec.sampler.endpoint.secret: found 'admin', allowed by profile strict: hub-*",
        ),
        ({"sampler": {"replicas": 5}}, "spec.sampler.replicas: found 5, allowed: at most 4, the limit of profile strict"),
        (
            {"sampler": {"engine": "vllm", "pipelineParallelSize": 2, "podsPerReplica": 2, "replicas": 3}},
            "spec.sampler.replicas: found 3 * podsPerReplica 2 = 6, allowed: at most 4, the limit of profile strict",
        ),
        ({"learner": {"replicas": 4}}, "spec.learner.replicas: found 4, allowed: at most 2, the limit of profile strict"),
        (
            {"task": GAME | {"simulators": {"replicas": 2}, "rewardModel": {"source": "tiny", "replicas": 2}}},
            "spec.task: found 4 task workers (simulators: 2, rewardModel: 2), allowed: at most 3, the limit of profile",
        ),
        (
            {"task": GAME | {"rewardModel": {"source": "tiny", "replicas": 4}}},
            "spec.task: found 4 task workers (rewardModel: 4), allowed: at most 3, the limit of profile strict",
        ),
        (
            {"stop": {"maxDuration": "2h"}},
            "spec.stop.maxDuration: found 2h, allowed: at most 90m, the limit of profile strict",
        ),
        (
            {"scheduling": {"preemptionGracePeriod": "6m"}},
            "spec.scheduling.preemptionGracePeriod: found 6m, allowed: at most 5m, the limit of profile strict",
        ),
    ],
)  # fmt: skip
def test_it_is_refused_with_the_operators_sentence(
    admission: KubeApi, namespace: str, spec: dict[str, Any], sentence: str
) -> None:
    spec = SPEC | {"profile": "strict"} | spec
    done = create(admission, namespace, spec, "--dry-run=server")
    assert done.returncode != 0, "accepted"
    assert "ValidatingAdmissionPolicy 'rltrain-profiles'" in done.stderr
    assert sentence in done.stderr
    assert ". Ask #gpus for more." in done.stderr
    document = manifest("RLTrainingRun", "run", spec)
    profile = manifest("RLTrainingProfile", "strict", PROFILE)
    found = plan(document, [profile], Settings(), {"tenant": "a"})
    assert isinstance(found, Refused)
    assert sentence in found.message
    assert found.message.endswith(". Ask #gpus for more.")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"image": DIGEST},
        {"image": "platform:1"},
        {"scheduling": {"priorityClass": "research", "queue": "team-a"}},
        {"scheduling": {"priorityClass": "default-class", "queue": "shared"}},
        {"model": {"source": "Qwen/Qwen3-0.6B"}},
        {"checkpoint": {"storage": {"s3": "s3://team-a/x"}}},
        {"checkpoint": {"storage": {"s3": "s3://given"}}},
        {"checkpoint": None},
        {"trainer": PROGRAM | {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}},
        {"secrets": ["hub-token"], "image": None, "scheduling": {"priorityClass": None}},
        {"sampler": {"engine": "endpoint", "endpoint": SERVER}},
        {"sampler": {"engine": "endpoint", "endpoint": SERVER | {"url": "http://inference.serving:8000/"}}},
        {"sampler": {"engine": "endpoint", "endpoint": SERVER | {"url": "http://[fd00::8]:8000"}}},
        {"sampler": {"replicas": 4}, "learner": {"replicas": 2}, "stop": {"maxDuration": "1h30m"}},
        {"task": GAME | {"simulators": {"replicas": 2}, "rewardModel": {"source": "tiny"}}},
        {"task": GAME | {"rewardModel": {"source": "tiny", "replicas": 4}}, "trainer": PROGRAM},
        {"stop": {"maxDuration": 5400}, "scheduling": {"preemptionGracePeriod": 300}},
    ],
)
def test_what_is_allowed_is_taken(admission: KubeApi, namespace: str, spec: dict[str, Any]) -> None:
    spec = SPEC | {"profile": "strict"} | spec
    done = create(admission, namespace, spec, "--dry-run=server")
    assert done.returncode == 0, done.stderr
    document = manifest("RLTrainingRun", "run", spec)
    profile = manifest("RLTrainingProfile", "strict", PROFILE)
    found = plan(document, [profile], Settings(), {"tenant": "a"})
    assert isinstance(found, Effective), found


@pytest.mark.parametrize("labels", [[], ["tenant=b"], ["tenant=a", "phase=test"]])
def test_a_profile_of_other_namespaces(admission: KubeApi, labels: list[str]) -> None:
    elsewhere = admission.new_namespace("elsewhere")
    if labels:
        admission.kubectl("label", "namespace", elsewhere, *labels)
    spec = SPEC | {"profile": "strict"}
    until(lambda: "metadata.namespace" in create(admission, elsewhere, spec, "--dry-run=server").stderr)
    done = create(admission, elsewhere, spec, "--dry-run=server")
    document = manifest("RLTrainingRun", "run", spec)
    document["metadata"]["namespace"] = elsewhere
    profile = manifest("RLTrainingProfile", "strict", PROFILE)
    found = plan(document, [profile], Settings(), dict(label.split("=") for label in labels))
    assert isinstance(found, Refused)
    assert found.message in done.stderr
    wanted = "namespaces with the labels tenant=a, phase NotIn (test), tenant Exists. Ask #gpus for more."
    assert found.message == f"metadata.namespace: found '{elsewhere}', allowed by profile strict: {wanted}"
    assert create(admission, elsewhere, SPEC, "--dry-run=server").returncode == 0, (
        "the default one is for all"
    )


def test_a_profile_that_isolates_code_of_the_users(admission: KubeApi, namespace: str) -> None:
    isolated = SPEC | {"profile": "isolating", "task": SPEC["task"] | {"isolation": "strict"}}
    done = create(admission, namespace, isolated, "--dry-run=server")
    assert done.returncode == 0, done.stderr
    shared = SPEC | {"profile": "isolating"}
    own = " allowed by profile isolating: "
    for spec, sentence in (
        (shared, f"spec.task.isolation: found 'shared',{own}strict. Ask the platform team"),
        (
            shared | {"trainer": PROGRAM},
            f"spec.trainer.kind: found 'command',{own}rltrain. Ask the platform team",
        ),
    ):
        assert sentence in create(admission, namespace, spec, "--dry-run=server").stderr


def test_a_run_that_names_no_profile_has_the_default_ones_rules(admission: KubeApi, namespace: str) -> None:
    done = create(admission, namespace, SPEC | {"image": "any:1"}, "--dry-run=server")
    assert done.returncode == 0, done.stderr
    done = create(
        admission,
        namespace,
        SPEC | {"scheduling": {"priorityClass": "system-node-critical"}},
        "--dry-run=server",
    )
    assert (
        "found 'system-node-critical', allowed by profile open: none. Ask the platform team for more."
        in done.stderr
    )


class TestARunThatExists:
    def patch(
        self, kube: KubeApi, namespace: str, change: dict[str, Any]
    ) -> subprocess.CompletedProcess[str]:
        arguments = ("patch", "rlrun", "run", "-n", namespace, "--type=merge", "-p", json.dumps(change))
        return kube.kubectl(*arguments, check=False)

    @pytest.mark.parametrize(
        "change",
        [
            {"scheduling": {"priorityClass": "system-node-critical"}},
            {"sampler": {"replicas": 5}},
            {"stop": {"maxDuration": "100h"}},
        ],
    )
    def test_it_gets_no_more_by_a_change(self, admission: KubeApi, run: str, change: dict[str, Any]) -> None:
        done = self.patch(admission, run, {"spec": change})
        assert done.returncode != 0
        assert ". Ask #gpus for more." in done.stderr

    def test_it_may_be_stopped_though_it_is_no_longer_allowed(self, admission: KubeApi, run: str) -> None:
        admission.kubectl("label", "namespace", run, "tenant=b", "--overwrite")
        spec = SPEC | {"profile": "strict"}
        until(lambda: "metadata.namespace" in create(admission, run, spec, "--dry-run=server").stderr)
        try:
            for change in ({"spec": {"suspend": True}}, {"metadata": {"labels": {"a": "b"}}}):
                done = self.patch(admission, run, change)
                assert done.returncode == 0, done.stderr
        finally:
            admission.kubectl("label", "namespace", run, "tenant=a", "--overwrite")


class TestAUserOfANamespace:
    """Somebody with the chart's role for who may edit a namespace."""

    @pytest.mark.parametrize(
        ("what", "change", "more"),
        [
            ("rlrun/run", {"status": {"phase": "Succeeded"}}, ["--subresource=status"]),
            ("rlprofile/strict", {"spec": {"allow": {"priorityClasses": ["system-node-critical"]}}}, []),
        ],
    )
    def test_neither_status_nor_profiles_are_the_users(
        self, admission: KubeApi, user: tuple[str, str], what: str, change: dict[str, Any], more: list[str]
    ) -> None:
        namespace, who = user
        arguments = ("patch", what, "-n", namespace, who, *more, "--type=merge", "-p", json.dumps(change))
        done = admission.kubectl(*arguments, check=False)
        assert done.returncode != 0
        assert "Forbidden" in done.stderr or "forbidden" in done.stderr

    def test_nor_are_new_profiles_or_other_rules(self, admission: KubeApi, user: tuple[str, str]) -> None:
        namespace, who = user
        own = json.dumps(manifest("RLTrainingProfile", "own", {"pools": [{"name": "cpu"}]}))
        for arguments, text in (
            (("create", "-f", "-"), own),
            (("delete", "rlprofile", "strict"), None),
            (("delete", "validatingadmissionpolicybinding", "rltrain-profiles"), None),
            (("label", "namespace", namespace, "tenant=a"), None),
        ):
            done = admission.kubectl(*arguments, who, stdin=text, check=False)
            assert done.returncode != 0
            assert "forbidden" in done.stderr
