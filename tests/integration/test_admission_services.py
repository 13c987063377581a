"""What a profile does not allow to a service is refused as it is applied, with the sentence that the operator says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kube import KubeApi
from test_admission_profiles import DIGEST, HELM, PROFILE, ROOT, manifest, until

from rl_operator.model.settings import Settings
from rl_operator.plan.refused import Refused
from rl_operator.plan.service import EffectiveService, plan_service

POLICY = "rltrain-service-profiles"
SPEC: dict[str, Any] = {"from": {"run": "sums"}, "auth": {"anonymous": True}}
STRICT = SPEC | {"profile": "services"}


def create(
    kube: KubeApi, namespace: str, spec: dict[str, Any], *more: str
) -> subprocess.CompletedProcess[str]:
    text = json.dumps(manifest("RLPolicyService", "chat", spec))
    return kube.kubectl("create", "-n", namespace, *more, "-f", "-", stdin=text, check=False)


def planned(spec: dict[str, Any], labels: dict[str, str], namespace: str = "") -> EffectiveService | Refused:
    """What the operator says of it."""
    document = manifest("RLPolicyService", "chat", spec)
    if namespace:
        document["metadata"]["namespace"] = namespace
    return plan_service(document, [manifest("RLTrainingProfile", "services", PROFILE)], Settings(), labels)


@pytest.fixture(scope="module")
def admission(kube: KubeApi) -> Iterator[KubeApi]:
    """The API with the policy and a profile; nothing of them is left for other tests."""
    kube.apply(manifest("RLTrainingProfile", "services", PROFILE))
    command = [str(HELM), "template", "rltrain", str(ROOT / "charts" / "rltrain")]
    text = subprocess.run(
        [*command, "-s", "templates/admission-services.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    kube.apply(*[one for one in yaml.safe_load_all(text) if one])
    namespace = kube.new_namespace("service-admission")
    until(lambda: "allowed by profile" in create(kube, namespace, STRICT, "--dry-run=server").stderr)
    yield kube
    kube.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", POLICY)
    kube.kubectl("delete", "rlprofile", "services")


@pytest.fixture(scope="module")
def namespace(admission: KubeApi) -> str:
    name = admission.new_namespace("service-tenant")
    admission.kubectl("label", "namespace", name, "tenant=a")
    until(lambda: create(admission, name, STRICT, "--dry-run=server").returncode == 0)
    return name


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"image": "evil/image:1"}, "found 'evil/image:1', allowed by profile services: registry.example/team/*"),
        (
            {"image": "registry.example/team/a:1"},
            "spec.image: found 'registry.example/team/a:1', allowed by profile services: an image with its digest, such as",
        ),
        (
            {"from": {"checkpoint": "other/model"}},
            "spec.from.checkpoint: found 'other/model', allowed by profile services: tiny, Qwen/*, s3://models/*",
        ),
        (
            {"from": {"checkpoint": "s3://models-of-others/x"}},
            "spec.from.checkpoint: found 's3://models-of-others/x', allowed by profile services: tiny, Qwen/*, s3://models/*",
        ),
        ({"secrets": ["hub-a", "admin"]}, "found 'admin', allowed by profile services: hub-*"),
        (
            {"auth": {"secret": "admin"}},
            "spec.auth.secret: found 'admin', allowed by profile services: hub-*",
        ),
    ],
)  # fmt: skip
def test_it_is_refused_with_the_operators_sentence(
    admission: KubeApi, namespace: str, spec: dict[str, Any], sentence: str
) -> None:
    done = create(admission, namespace, STRICT | spec, "--dry-run=server")
    assert done.returncode != 0, "accepted"
    assert f"ValidatingAdmissionPolicy '{POLICY}'" in done.stderr
    assert sentence in done.stderr
    assert ". Ask #gpus for more." in done.stderr
    found = planned(STRICT | spec, {"tenant": "a"})
    assert isinstance(found, Refused)
    assert sentence in found.message
    assert found.message.endswith(". Ask #gpus for more.")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"image": DIGEST},
        {"image": "platform:1"},
        {"from": {"checkpoint": "Qwen/Qwen3-0.6B"}},
        {"from": {"checkpoint": "s3://models/chat"}},
        {"secrets": ["hub-token"]},
        {"auth": {"secret": "hub-keys"}},
    ],
)
def test_what_is_allowed_is_taken(admission: KubeApi, namespace: str, spec: dict[str, Any]) -> None:
    done = create(admission, namespace, STRICT | spec, "--dry-run=server")
    assert done.returncode == 0, done.stderr
    assert isinstance(planned(STRICT | spec, {"tenant": "a"}), EffectiveService)


def test_a_profile_of_other_namespaces(admission: KubeApi) -> None:
    elsewhere = admission.new_namespace("service-elsewhere")
    done = create(admission, elsewhere, STRICT, "--dry-run=server")
    found = planned(STRICT, {}, elsewhere)
    assert isinstance(found, Refused)
    assert found.message.startswith(f"metadata.namespace: found '{elsewhere}', allowed by profile services")
    assert found.message in done.stderr


def test_one_that_is_no_longer_allowed_can_be_changed_but_gets_no_more(
    admission: KubeApi, namespace: str
) -> None:
    done = create(admission, namespace, STRICT)
    assert done.returncode == 0, done.stderr

    def patch(change: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
        words = ("patch", "rlps", "chat", "-n", namespace, "--type=merge", "-p", json.dumps(change), *more)
        return admission.kubectl(*words, check=False)

    for change in ({"image": "evil/image:1"}, {"auth": {"anonymous": False, "secret": "admin"}}):
        done = patch({"spec": change}, "--dry-run=server")
        assert ". Ask #gpus for more." in done.stderr
    for source in ({"run": "others"}, {"run": None, "checkpoint": "tiny"}):
        done = patch({"spec": {"from": source}}, "--dry-run=server")
        assert "spec.from: Invalid value" in done.stderr
        assert "from cannot be changed on a service that exists" in done.stderr
    admission.kubectl("label", "namespace", namespace, "tenant=b", "--overwrite")
    until(lambda: "metadata.namespace" in create(admission, namespace, STRICT, "--dry-run=server").stderr)
    try:
        for change in ({"replicas": {"min": 2}}, {"promotion": {"mode": "manual", "step": 10}}):
            done = patch({"spec": change})
            assert done.returncode == 0, done.stderr
        assert "metadata.namespace" in patch({"spec": {"secrets": ["hub-a"]}}).stderr
    finally:
        admission.kubectl("label", "namespace", namespace, "tenant=a", "--overwrite")
