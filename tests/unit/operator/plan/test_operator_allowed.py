"""What a profile allows: refused by default is what escapes a run's namespace, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import GPU_POOLS, SETTINGS, make_plan, make_profile, make_run, merge, refused

from rl_operator.plan.effective import CHECKPOINT_CLAIM, WEIGHTS_CLAIM, Effective, plan
from rl_operator.plan.refused import Refused

PROGRAM = {"kind": "command", "command": ["python"]}
JUDGED = {"environment": "reasoning-gym", "name": "chain_sum", "rewards": [{"rule": "model"}]}
S3 = {"checkpoint": {"storage": {"persistentVolumeClaim": None, "s3": "s3://team-a/runs"}}}
SERVED = {
    **{"engine": "endpoint", "replicas": 1},
    "endpoint": {
        "url": "http://inference.serving:8000",
        "folder": "/mnt/weights",
        "persistentVolumeClaim": "weights",
    },
}
DIGEST = f"registry.example/a@sha256:{'0' * 64}"


def allowing(**allow: Any) -> dict[str, Any]:
    return make_profile(default=True, allow=allow)


@pytest.mark.parametrize(
    ("allow", "spec", "sentence"),
    [
        (
            {},
            {"scheduling": {"priorityClass": "system-node-critical"}},
            "spec.scheduling.priorityClass: found 'system-node-critical', allowed by profile shared: none",
        ),
        (
            {"priorityClasses": ["research", "batch"]},
            {"scheduling": {"priorityClass": "system-node-critical"}},
            "spec.scheduling.priorityClass: found 'system-node-critical', allowed by profile shared: research, batch",
        ),
        (
            {"images": {"patterns": ["registry.example/team-a/*"]}},
            {"image": "registry.example/team-b/secret:1"},
            "spec.image: found 'registry.example/team-b/secret:1', allowed by profile shared: registry.example/team-a/*",
        ),
        (
            {"images": {"digestRequired": True}},
            {"image": "registry.example/a:1"},
            "spec.image: found 'registry.example/a:1', allowed by profile shared: an image with its digest",
        ),
        (
            {"queues": ["team-a"]},
            {"scheduling": {"queue": "team-b"}},
            "spec.scheduling.queue: found 'team-b', allowed by profile shared: team-a",
        ),
        (
            {"modelSources": ["Qwen/*", "s3://models/*"]},
            {"model": {"source": "evil/model"}},
            "spec.model.source: found 'evil/model', allowed by profile shared: Qwen/*, s3://models/*",
        ),
        (
            {"modelSources": ["tiny", "Qwen/*"]},
            {"task": JUDGED | {"rewardModel": {"source": "evil/judge"}}},
            "spec.task.rewardModel.source: found 'evil/judge', allowed by profile shared: tiny, Qwen/*",
        ),
        (
            {"storage": {"s3": ["s3://team-b/*"]}},
            S3,
            "spec.checkpoint.storage.s3: found 's3://team-a/runs', allowed by profile shared: s3://team-b/*",
        ),
        (
            {},
            {"trainer": PROGRAM | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
            "spec.trainer.env[0].name: found 'NVIDIA_VISIBLE_DEVICES', allowed by profile shared: names by which no",
        ),
        (
            {"environment": {"names": ["WANDB_*"]}},
            {"trainer": PROGRAM | {"env": [{"name": "WANDB_KEY", "value": ""}, {"name": "A", "value": ""}]}},
            "spec.trainer.env[1].name: found 'A', allowed by profile shared: WANDB_*",
        ),
        (
            {"environment": {"secrets": ["hub-*"]}},
            {"secrets": ["hub-token", "admin"]},
            "spec.secrets[1]: found 'admin', allowed by profile shared: hub-*",
        ),
        (
            {"environment": {"secrets": ["hub-*"]}},
            {"task": {"secrets": ["hub-token", "admin"]}},
            "spec.task.secrets[1]: found 'admin', allowed by profile shared: hub-*",
        ),
        (
            {"isolation": "strict"},
            {},
            "spec.task.isolation: found 'shared', allowed by profile shared: strict",
        ),
        (
            {"isolation": "strict"},
            {"trainer": PROGRAM},
            "spec.trainer.kind: found 'command', allowed by profile shared: rltrain",
        ),
        ({"environment": {"secrets": []}}, {"secrets": ["hub"]}, "allowed by profile shared: none"),
        (
            {},
            {"sampler": SERVED},
            "spec.sampler.endpoint.url: found 'http://inference.serving:8000', allowed by profile shared: none",
        ),
        (
            {"endpoints": [{"url": "http://other:8000"}, {"url": "https://*.team-a/*"}]},
            {"sampler": SERVED},
            "found 'http://inference.serving:8000', allowed by profile shared: http://other:8000, https://*.team-a/*",
        ),
        (
            {"endpoints": [{"url": "http://inference.serving:8000"}], "environment": {"secrets": ["hub-*"]}},
            {"sampler": merge(SERVED, {"endpoint": {"secret": "admin"}})},
            "spec.sampler.endpoint.secret: found 'admin', allowed by profile shared: hub-*",
        ),
    ],
)
def test_a_run_that_asks_for_more_is_told_what_is_allowed_and_whom_to_ask(
    allow: dict[str, Any], spec: dict[str, Any], sentence: str
) -> None:
    found = refused(spec, allowing(**allow))
    assert found.reason == "NotAllowed"
    assert sentence in found.message
    assert ";" not in found.message
    assert found.message.endswith(". Ask the platform team for more.")
    assert found.profile_name == "shared"


def test_whom_to_ask_is_the_profiles_to_say() -> None:
    profile = make_profile(default=True, contact="#gpus on chat")
    found = refused({"scheduling": {"priorityClass": "research"}}, profile)
    assert found.message.endswith(". Ask #gpus on chat for more.")
    limited = make_profile(default=True, contact="#gpus on chat", limits={"maxSamplers": 1})
    assert refused({}, limited).message.endswith(". Ask #gpus on chat for more.")


@pytest.mark.parametrize(
    ("allow", "spec"),
    [
        (
            {},
            {
                "image": "any/image:1",
                "secrets": ["any"],
                "model": {"source": "any/model"},
                "scheduling": {"queue": "any"},
                "trainer": PROGRAM | {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]},
                **S3,
            },
        ),
        ({"priorityClasses": ["research"]}, {"scheduling": {"priorityClass": "research"}}),
        ({"images": {"patterns": ["registry.example/*"], "digestRequired": True}}, {"image": DIGEST}),
        ({"queues": ["team-a"]}, {"scheduling": {"queue": "team-a"}}),
        ({"modelSources": ["tiny"]}, {}),
        ({"modelSources": []}, {"trainer": PROGRAM, "model": None, "task": None}),
        ({"storage": {"s3": []}}, {}),
        (
            {"endpoints": [{"url": "http://inference.serving:*"}], "environment": {"secrets": ["key-*"]}},
            {"sampler": merge(SERVED, {"endpoint": {"secret": "key-a", "apiKeyVariable": "KEY"}})},
        ),
        ({"storage": {"s3": []}}, {"checkpoint": {"storage": {"persistentVolumeClaim": "own"}}}),
        ({"storage": {"s3": ["s3://team-a/*"]}}, S3),
        (
            {"environment": {"names": ["NVIDIA_*"], "secrets": ["hub-*"]}},
            {
                "secrets": ["hub-a"],
                "trainer": PROGRAM | {"env": [{"name": "NVIDIA_TF32_OVERRIDE", "value": "0"}]},
            },
        ),
    ],
)
def test_what_is_allowed(allow: dict[str, Any], spec: dict[str, Any]) -> None:
    run = make_run()
    run["spec"] = merge(run["spec"], spec)
    found = plan(run, [allowing(**allow)], SETTINGS)
    assert isinstance(found, Effective), found


def test_what_the_profile_itself_gives_is_allowed() -> None:
    allow = {
        "images": {"patterns": [], "digestRequired": True, "alwaysPull": True},
        "queues": [],
        "storage": {"s3": []},
    }
    defaults = {
        "scheduling": {"priorityClass": "research"},
        "checkpoint": {"storage": {"s3": "s3://shared"}},
    }
    profile = make_profile(
        default=True, allow=allow, defaults=defaults, queue="team-a", images={"cpu": "c:1", "gpu": "g:1"}
    )
    run = make_run({"image": "c:1", "scheduling": {"queue": "team-a"}})
    del run["spec"]["checkpoint"]
    found = plan(run, [profile], SETTINGS)
    assert isinstance(found, Effective), found
    assert (found.spec.scheduling.priority_class, found.image_pull_policy) == ("research", "IfNotPresent")


def test_an_image_that_the_run_names_is_asked_for_at_the_registry_each_time() -> None:
    profile = allowing(images={"alwaysPull": True})
    assert make_plan({"image": "registry.example/private:1"}, profile).image_pull_policy == "Always"
    assert make_plan({}, profile).image_pull_policy == "IfNotPresent", "the operator's own image"
    assert make_plan({"image": "a:1"}).image_pull_policy == "IfNotPresent"


NAMESPACES = {
    "matchLabels": {"tenant": "a"},
    "matchExpressions": [{"key": "phase", "operator": "NotIn", "values": ["test"]}],
}


@pytest.mark.parametrize(
    ("labels", "allowed"),
    [
        (None, True),
        ({"tenant": "a"}, True),
        ({"tenant": "a", "phase": "test"}, False),
        ({"tenant": "b"}, False),
        ({}, False),
    ],
)
def test_namespaces_by_their_labels(labels: dict[str, str] | None, allowed: bool) -> None:
    found = plan(make_run(), [allowing(namespaces=NAMESPACES)], SETTINGS, labels)
    if allowed:
        assert isinstance(found, Effective)
        return
    assert isinstance(found, Refused)
    assert found.message == (
        "metadata.namespace: found 'team-a', allowed by profile shared: namespaces with the labels tenant=a, phase "
        "NotIn (test). Ask the platform team for more."
    )
    assert isinstance(plan(make_run(), [allowing()], SETTINGS, labels), Effective)


class TestPoolsWithAccelerators:
    """Who asks for no accelerator does not get onto nodes that others wait for."""

    @pytest.mark.parametrize(
        ("spec", "part", "role"),
        [
            ({"sampler": {"pools": ["h100"], "resources": {"accelerators": 0}}}, "sampler", "sampler"),
            ({"trainer": PROGRAM | {"pools": ["h100"]}}, "trainer", "head"),
        ],
    )
    def test_it_is_refused(self, spec: dict[str, Any], part: str, role: str) -> None:
        found = refused(spec, make_profile(default=True, pools=GPU_POOLS))
        assert found.reason == "NotAllowed"
        assert found.message == (
            f"spec.{part}.pools: found pool h100 for pods of the {role} that ask for no accelerator, allowed there: pods "
            "with 1 or more nvidia.com/gpu, as the pool does not say withoutAccelerators. "
            "Ask the platform team for more."
        )

    def test_a_head_has_no_place_where_all_pools_have_accelerators(self) -> None:
        profile = make_profile(default=True, pools=GPU_POOLS[:1])
        assert "found pool h100 for pods of the head" in refused({}, profile).message

    def test_unless_the_pool_says_so(self) -> None:
        profile = make_profile(default=True, pools=[GPU_POOLS[0] | {"withoutAccelerators": True}])
        assert make_plan({}, profile).role("head").pool.name == "h100"


@pytest.mark.parametrize(
    ("classes", "claim", "storage_class", "sentence"),
    [
        (None, "ckpt", "local", ""),
        (["shared-*"], "ckpt", "shared-ssd", ""),
        (["shared-*"], "given", "local", ""),
        (["shared-*"], "ckpt", "local", "found 'ckpt' with storage class 'local', allowed by profile shared: claims of"),
        ([], "ckpt", None, "found 'ckpt' with no storage class, allowed by profile shared: claims of none."),
    ],
)  # fmt: skip
def test_claims_by_their_class(
    classes: list[str] | None, claim: str, storage_class: str | None, sentence: str
) -> None:
    defaults = {"checkpoint": {"storage": {"persistentVolumeClaim": "given"}}}
    profile = make_profile(default=True, defaults=defaults, allow={"storage": {"claimClasses": classes}})
    run = make_plan({"checkpoint": {"storage": {"persistentVolumeClaim": claim}}}, profile)
    found = run.wrong_claim(CHECKPOINT_CLAIM, storage_class)
    assert sentence in found
    assert bool(sentence) == bool(found)


def test_the_claim_of_the_weights_is_of_an_allowed_class_as_well() -> None:
    allow = {
        "storage": {"claimClasses": ["shared-*"]},
        "endpoints": [{"url": "http://inference.serving:8000"}],
    }
    run = make_plan({"sampler": SERVED}, allowing(**allow))
    assert run.claims == {CHECKPOINT_CLAIM: "ckpt", WEIGHTS_CLAIM: "weights"}
    assert run.wrong_claim(WEIGHTS_CLAIM, "local").startswith(
        "spec.sampler.endpoint.persistentVolumeClaim: found 'weights' with storage class 'local', allowed by profile "
    )
    assert run.wrong_claim(WEIGHTS_CLAIM, "shared-ssd") == ""
