"""A service as it is carried out: what its profile allows, and whom it follows."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import make_profile, make_run
from service_worlds import make_service, make_service_plan

from rl_api.service_status import FollowedRun
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import plan
from rl_operator.plan.refused import Refused
from rl_operator.plan.service import follow, plan_service

POOLS = [
    {"name": "h100", "acceleratorResource": "nvidia.com/gpu", "acceleratorsPerNode": 8},
    {"name": "cpu"},
]


VLLM = {"engine": "vllm", "promotion": {"answers": "stamp"}}


def refused(spec: dict[str, Any], **profile: Any) -> Refused:
    given = make_profile(default=True, **({"pools": POOLS} | profile))
    found = plan_service(make_service(spec), [given], Settings(), {"team": "a"})
    assert isinstance(found, Refused)
    return found


def test_a_copy_has_a_gpu_where_there_are_some_and_the_head_has_none() -> None:
    found = make_service_plan({"replicas": {"min": 2}}, make_profile(default=True, pools=POOLS))
    head, replica = found.roles
    assert (head.pool.name, head.accelerators) == ("cpu", 0)
    assert (replica.pool.name, replica.accelerators, replica.replicas) == ("h100", 1, 2)
    assert found.model == "chat"


def test_a_copy_of_vllm_has_a_gpu_for_each_of_its_parts() -> None:
    gpus = make_profile(default=True, pools=POOLS)
    found = make_service_plan({**VLLM, "tensorParallelSize": 4, "pipelineParallelSize": 2}, gpus)
    assert (found.role("replica").accelerators, found.role("head").accelerators) == (8, 0)
    said = make_service_plan({**VLLM, "tensorParallelSize": 2, "resources": {"accelerators": 2}}, gpus)
    assert said.role("replica").accelerators == 2
    divided = {**VLLM, "tensorParallelSize": 2, "replicas": {"min": 5}}
    limited = refused(divided, limits={"maxAccelerators": 8})
    assert "found 10 accelerators (replica: 5 * 2), allowed: at most 8" in limited.message


def test_copies_for_prompts_are_divided_like_the_others_and_counted() -> None:
    gpus = make_profile(default=True, pools=POOLS)
    found = make_service_plan({**VLLM, "tensorParallelSize": 2, "prefill": {"replicas": 3}}, gpus)
    assert [role.name for role in found.roles] == ["head", "replica", "prefill"]
    prefill = found.role("prefill")
    assert (prefill.replicas, prefill.accelerators, prefill.pool.name) == (3, 2, "h100")
    asked = {**VLLM, "resources": {"cpu": 6}, "prefill": {}}
    assert make_service_plan(asked, gpus).role("prefill").ray_cpus == 6
    asked["prefill"] = {"resources": {"cpu": 2, "memory": "9Gi"}}
    own = make_service_plan(asked, gpus)
    assert (own.role("prefill").ray_cpus, own.role("prefill").memory, own.role("replica").ray_cpus) == (
        2,
        "9Gi",
        6,
    )
    limited = refused({**VLLM, "prefill": {"replicas": 2}}, limits={"maxAccelerators": 2})
    assert "found 3 accelerators (replica: 1 * 1, prefill: 2 * 1), allowed: at most 2" in limited.message
    pools = [POOLS[0] | {"limits": {"maxReplicas": 4}}, POOLS[1]]
    crowded = refused({**VLLM, "prefill": {"replicas": 5}}, pools=pools)
    assert "spec.prefill.replicas: found 5, allowed: at most 4, the limit of pool h100" in crowded.message


def test_vllm_without_accelerators_needs_an_image_that_has_it() -> None:
    pool = {**VLLM, "pools": ["cpu"]}
    found = make_service_plan({**pool, "image": "mine:1"}, make_profile(default=True, pools=POOLS))
    assert (found.role("replica").accelerators, found.role("replica").image) == (0, "mine:1")
    of_profile = make_profile(default=True, pools=POOLS, images={"cpu": "with-vllm:1"})
    assert make_service_plan(pool, of_profile).role("replica").image == "with-vllm:1"


def test_what_the_head_needs_is_said() -> None:
    found = make_service_plan({"head": {"resources": {"memory": "8Gi"}}})
    assert found.role("head").memory == "8Gi"


@pytest.mark.parametrize(
    ("spec", "profile", "reason", "words"),
    [
        ({"pools": ["a100"]}, {}, "InvalidSpec", "spec.pools[0]: found 'a100', allowed: a pool of"),
        ({"head": {"pools": ["a100"]}}, {}, "InvalidSpec", "spec.head.pools[0]: found 'a100'"),
        (
            {"resources": {"accelerators": 2}},
            {},
            "InvalidSpec",
            "spec.resources.accelerators: found 2, allowed: 0 or 1",
        ),
        (
            {"pools": ["cpu"], "resources": {"accelerators": 1}},
            {},
            "InvalidSpec",
            "spec.resources.accelerators: found 1, allowed: 0 on pool cpu",
        ),
        ({"resources": {"accelerators": 0}}, {}, "NotAllowed", "spec.pools: found pool h100"),
        (
            {**VLLM, "tensorParallelSize": 2, "resources": {"accelerators": 1}},
            {},
            "InvalidSpec",
            "spec.resources.accelerators: found 1, allowed: 2, as a copy of engine vllm has tensorParallelSize 2 * "
            "pipelineParallelSize 1",
        ),
        (
            {**VLLM, "resources": {"accelerators": 0}},
            {},
            "InvalidSpec",
            "spec.resources.accelerators: found 0, allowed: 1, as a copy of engine vllm",
        ),
        (
            {**VLLM, "tensorParallelSize": 8, "pipelineParallelSize": 2},
            {},
            "InvalidSpec",
            "spec.tensorParallelSize: found tensorParallelSize 8 * pipelineParallelSize 2, in one pod 16 accelerators, "
            "allowed: at most 8, what a node of pool h100 has",
        ),
        (
            {**VLLM, "pools": ["cpu"]},
            {},
            "InvalidSpec",
            "spec.engine: found vllm, allowed on pool cpu, without accelerators: torch, as rltrain's image for CPUs has no "
            "vLLM; name a pool with accelerators",
        ),
        ({"engine": "vllm"}, {}, "InvalidSpec", "spec.promotion.answers: found finish"),
        (
            {"prefill": {}},
            {},
            "InvalidSpec",
            "spec.prefill: found an object, allowed: null with engine torch",
        ),
        (
            {**VLLM, "prefill": {"pools": ["a100"]}},
            {},
            "InvalidSpec",
            "spec.prefill.pools[0]: found 'a100', allowed: a pool of",
        ),
        (
            {**VLLM, "prefill": {"pools": ["cpu"]}},
            {},
            "InvalidSpec",
            "spec.prefill.pools: found pool cpu, with no accelerators, allowed: pools with nvidia.com/gpu",
        ),
        (
            {**VLLM, "prefill": {"resources": {"accelerators": 2}}},
            {},
            "InvalidSpec",
            "spec.prefill.resources.accelerators: found 2, allowed: 1, as a copy of engine vllm",
        ),
        ({"head": {"pools": ["h100"]}}, {}, "NotAllowed", "spec.head.pools: found pool h100"),
        (
            {"head": {"pools": ["h100"], "resources": {"accelerators": 1}}},
            {},
            "InvalidSpec",
            "spec.head.resources.accelerators: found 1, allowed: 0",
        ),
        (
            {"replicas": {"min": 9}},
            {"limits": {"maxAccelerators": 8}},
            "LimitExceeded",
            "found 9 accelerators (replica: 9 * 1), allowed: at most 8",
        ),
        (
            {"replicas": {"min": 1, "max": 9}},
            {"limits": {"perNamespace": {"maxAccelerators": 8}}},
            "LimitExceeded",
            "found 9 accelerators, allowed: at most 8",
        ),
        (
            {"image": "mine:1"},
            {"allow": {"images": {"patterns": []}}},
            "NotAllowed",
            "spec.image: found 'mine:1'",
        ),
        (
            {"from": {"checkpoint": "s3://others/x"}},
            {"allow": {"modelSources": ["s3://ours/*"]}},
            "NotAllowed",
            "spec.from.checkpoint: found 's3://others/x'",
        ),
        (
            {"secrets": ["other"]},
            {"allow": {"environment": {"secrets": ["ours-*"]}}},
            "NotAllowed",
            "spec.secrets[0]: found 'other'",
        ),
        (
            {"auth": {"secret": "other"}},
            {"allow": {"environment": {"secrets": ["ours-*"]}}},
            "NotAllowed",
            "spec.auth.secret: found 'other', allowed by profile",
        ),
        (
            {},
            {"allow": {"namespaces": {"matchLabels": {"team": "b"}}}},
            "NotAllowed",
            "metadata.namespace: found 'team-a'",
        ),
        ({"profile": "none"}, {}, "ProfileMissing", "spec.profile: found 'none'"),
        ({"from": {}}, {}, "InvalidSpec", "spec.from: found none"),
    ],
)
def test_what_is_refused(spec: dict[str, Any], profile: dict[str, Any], reason: str, words: str) -> None:
    found = refused(spec, **profile)
    assert found.reason == reason
    assert words in found.message


def carried(spec: dict[str, Any] | None = None) -> Any:
    return plan(make_run(spec), [], Settings())


def test_the_run_says_where_its_checkpoints_are() -> None:
    found, lost = follow("sums", make_run(), carried(), None)
    assert lost is None
    assert found == FollowedRun(name="sums", uid="12345678-90ab", claim="ckpt", folder="sums-12345678")
    storage = {"checkpoint": {"storage": {"persistentVolumeClaim": None, "s3": "s3://bucket/team"}}}
    run = make_run(storage)
    run["spec"]["checkpoint"]["storage"] = {"s3": "s3://bucket/team"}
    found, _ = follow("sums", run, plan(run, [], Settings()), None)
    assert found == FollowedRun(
        name="sums", uid="12345678-90ab", claim=None, folder="s3://bucket/team/sums-12345678"
    )


KNOWN = FollowedRun(name="sums", uid="12345678-90ab", claim="ckpt", folder="sums-12345678")


@pytest.mark.parametrize(
    ("run", "known", "reason", "kept"),
    [
        (None, None, "RunMissing", False),
        (None, KNOWN, "RunDeleted", True),
        (make_run(uid="another"), KNOWN, "RunReplaced", True),
        (None, KNOWN.model_copy(update={"name": "other"}), "RunMissing", False),
    ],
)
def test_a_run_that_is_not_there(run: Any, known: FollowedRun | None, reason: str, kept: bool) -> None:
    found, lost = follow("sums", run, carried(), known)
    assert lost is not None
    assert lost.reason == reason
    assert (found is not None) == kept


def test_a_run_that_cannot_be_carried_out_is_named_until_it_was() -> None:
    bad = carried({"sampler": {"replicas": 0}})
    found, lost = follow("sums", make_run(), bad, None)
    assert found is None
    assert lost is not None
    assert lost.reason == "RunRefused"
    assert follow("sums", make_run(), bad, KNOWN) == (KNOWN, None)
