"""Devices that are claimed by class: the template, the pod, and that they are counted as accelerators are."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import VERL, container, groups, live_objects, make_plan, make_profile, refused
from service_worlds import FOLLOWED, checkpoint, make_service_plan

from rl_operator.decide.drift import drift
from rl_operator.plan.effective import Effective
from rl_operator.plan.limits import needs_of
from rl_operator.render.objects import run_objects
from rl_operator.render.service import ray_service, service_objects

PROFILE_OF_A_DEVICE = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
MIG = {
    "name": "mig",
    "nodeSelector": {"gpu": "mig"},
    "deviceClass": {"name": "mig.nvidia.com", "selectors": [PROFILE_OF_A_DEVICE]},
}
GPU = {"name": "gpus", "nodeSelector": {"gpu": "h100"}, "deviceClass": {"name": "gpu.nvidia.com"}}
POOLS: list[dict[str, Any]] = [GPU | {"acceleratorsPerNode": 8}, MIG, {"name": "cpu"}]


def planned(spec: dict[str, Any], *pools: dict[str, Any], **profile: Any) -> Effective:
    return make_plan(spec, make_profile(default=True, pools=list(pools or POOLS), **profile))


def templates(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = [one for one in objects if one["kind"] == "ResourceClaimTemplate"]
    return {one["metadata"]["name"]: one for one in found}


def test_a_pod_claims_as_many_devices_as_it_has_accelerators() -> None:
    effective = planned({"sampler": {"pools": ["mig"], "tensorParallelSize": 2}})
    found, made = groups(effective), templates(run_objects(effective))
    assert len(made) == 2, "learner and sampler; the head needs none"
    pod, ray = found["sampler"]["template"]["spec"], container(found["sampler"])
    (claim,) = pod["resourceClaims"]
    assert ray["resources"]["claims"] == [{"name": claim["name"]}]
    assert made[claim["resourceClaimTemplateName"]]["spec"] == {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "accelerators",
                        "exactly": {
                            "deviceClassName": "mig.nvidia.com",
                            "allocationMode": "ExactCount",
                            "count": 2,
                            "selectors": [{"cel": {"expression": PROFILE_OF_A_DEVICE}}],
                        },
                    }
                ]
            }
        }
    }
    assert set(ray["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}, (
        "nothing is asked for twice"
    )
    assert found["sampler"]["rayStartParams"]["num-gpus"] == "2"
    assert ray["image"].endswith("-gpu")
    learners = found["learner"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    (asked,) = made[learners]["spec"]["spec"]["devices"]["requests"]
    assert asked["exactly"] == {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 1,
    }
    assert "resourceClaims" not in found["head"]["template"]["spec"]
    assert "claims" not in container(found["head"])["resources"]


def test_devices_of_a_claim_come_by_no_variable() -> None:
    """An image for GPUs asks for all of them by one, which a container runtime may take for granted."""
    plain = {"name": "plain", "acceleratorResource": "nvidia.com/gpu"}
    found = groups(planned({"sampler": {"pools": ["plain"]}}, GPU, plain, {"name": "cpu"}))
    values = {
        role: next(
            (one["value"] for one in container(group)["env"] if one["name"] == "NVIDIA_VISIBLE_DEVICES"), None
        )
        for role, group in found.items()
    }
    assert values == {"head": "void", "learner": "void", "sampler": None}


def test_the_container_of_the_users_code_has_none_of_them() -> None:
    found = groups(planned({"task": {"isolation": "strict"}}))["sampler"]["template"]["spec"]
    ray, code = found["containers"]
    assert "claims" in ray["resources"]
    assert "claims" not in code["resources"]


def test_a_partition_that_a_device_plugin_counts_is_a_resource_like_others() -> None:
    plugin = {"name": "slices", "acceleratorResource": "nvidia.com/mig-1g.10gb", "acceleratorsPerNode": 7}
    effective = planned({"sampler": {"pools": ["slices"], "tensorParallelSize": 2}}, plugin, {"name": "cpu"})
    group = groups(effective)["sampler"]
    assert container(group)["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "2"
    assert container(group)["resources"]["requests"]["nvidia.com/mig-1g.10gb"] == "2"
    assert group["rayStartParams"]["num-gpus"] == "2"
    assert "resourceClaims" not in group["template"]["spec"]
    assert templates(run_objects(effective)) == {}
    assert needs_of(effective.roles).accelerators == 5


def test_claimed_devices_count_where_accelerators_do() -> None:
    spec = {"sampler": {"pools": ["gpus"], "replicas": 2, "tensorParallelSize": 3}}
    assert needs_of(planned(spec).roles).accelerators == 7
    profile = make_profile(default=True, pools=POOLS, limits={"maxAccelerators": 6})
    assert (
        "found 7 accelerators (learner: 1 * 1, sampler: 2 * 3), allowed: at most 6"
        in refused(spec, profile).message
    )
    of_pool = [POOLS[0] | {"limits": {"maxAccelerators": 5}}, *POOLS[1:]]
    assert (
        "found 7 accelerators of pool gpus"
        in refused(spec, make_profile(default=True, pools=of_pool)).message
    )
    most = {"perNamespace": {"maxAccelerators": 4}}
    assert (
        "found 7 accelerators, allowed: at most 4"
        in refused(spec, make_profile(default=True, pools=POOLS, limits=most)).message
    )
    profile = make_profile(default=True, pools=POOLS)
    assert (
        "found 9, allowed: at most 8, what a node of pool gpus has"
        in refused({"sampler": {"tensorParallelSize": 9}}, profile).message
    )
    idle = refused({"sampler": {"resources": {"accelerators": 0}}}, profile)
    assert "pods with 1 or more devices of class gpu.nvidia.com" in idle.message


@pytest.mark.parametrize("scheduler", ["volcano", "yunikorn", "schedulerPlugins"])
def test_a_gang_whose_scheduler_sees_no_devices_is_refused(scheduler: str) -> None:
    spec = {"sampler": {"pools": ["cpu"], "resources": {"accelerators": 0}}}
    profile = make_profile(default=True, pools=POOLS, gang={"scheduler": scheduler})
    found = refused(spec, profile)
    assert (found.reason, found.message) == (
        "InvalidSpec",
        "spec.learner.pools: found pool gpus with deviceClass gpu.nvidia.com, allowed by profile shared: pools with an "
        f"acceleratorResource, as gang.scheduler {scheduler} finds room for a gang by what its pods ask for, and sees no "
        "devices that they claim",
    )


@pytest.mark.parametrize("gang", [{"scheduler": "kai", "queue": "research"}, {"scheduler": "kubernetes"}])
def test_a_gang_whose_scheduler_sees_devices_may_claim_them(gang: dict[str, str]) -> None:
    assert planned({}, gang=gang).profile.gang is not None


def test_pools_of_a_role_claim_the_same() -> None:
    spec = {"sampler": {"pools": ["gpus", "mig"]}}
    assert (
        "found 'mig' (deviceClass mig.nvidia.com where device.attributes['gpu.nvidia.com'].profile == '1g.10gb', "
        "runtimeClass none), allowed beside 'gpus': pools whose pods are alike (deviceClass gpu.nvidia.com, "
        "runtimeClass none)"
    ) in refused(spec, make_profile(default=True, pools=POOLS)).message
    spot = GPU | {"name": "spot", "nodeSelector": {"gpu": "h100", "capacity": "spot"}, "spot": True}
    effective = planned({"sampler": {"pools": ["spot", "gpus"]}}, *POOLS, spot)
    assert len(groups(effective)["sampler"]["template"]["spec"]["resourceClaims"]) == 1


def test_verl_claims_all_devices_of_a_node() -> None:
    effective = planned(VERL | {"learner": {"pools": ["gpus"]}})
    (template,) = templates(run_objects(effective)).values()
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 8
    smaller = GPU | {"name": "spot", "nodeSelector": {"capacity": "spot"}, "acceleratorsPerNode": 4}
    found = refused(
        VERL | {"learner": {"pools": ["gpus", "spot"]}}, make_profile(default=True, pools=[*POOLS, smaller])
    )
    assert found.message == (
        "spec.learner.pools: found pool spot, whose nodes have 4 accelerators, allowed beside gpus with trainer.kind verl: "
        "pools whose nodes have 8 or more, as a pod takes all of a node of gpus"
    )


def test_a_template_is_put_right_and_another_one_stands_beside_it() -> None:
    effective = planned({})
    objects, live = run_objects(effective), live_objects(effective)
    assert drift(objects, live) == ((), ())
    first, second = sorted(templates(objects))
    del live["ResourceClaimTemplate", first]
    missing, _ = drift(objects, live)
    assert [one["metadata"]["name"] for one in missing] == [first]
    # Its spec cannot be changed, and pods that are there go by it.
    other = planned({}, POOLS[0] | {"deviceClass": {"name": "other.nvidia.com"}}, *POOLS[1:])
    assert not {first, second} & set(templates(run_objects(other)))
    assert sorted(templates(run_objects(planned({"learner": {"threads": 2}})))) == [first, second]


def test_owners_and_labels_are_those_of_the_run() -> None:
    for name, one in templates(run_objects(planned({}))).items():
        assert name.startswith(("sums-learner-", "sums-sampler-"))
        metadata = one["metadata"]
        assert metadata["labels"]["rltrain.dev/run"] == "sums"
        assert metadata["ownerReferences"][0]["uid"] == "12345678-90ab"
        assert len(metadata["annotations"]["rltrain.dev/manifest"]) == 16


def test_copies_of_a_policy_claim_theirs() -> None:
    profile = make_profile(default=True, pools=POOLS)
    service = make_service_plan({"pools": ["mig"]}, profile)
    (template,) = templates(service_objects(service)).values()
    groups_ = ray_service(service, FOLLOWED, checkpoint(20))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    claims = [one["template"]["spec"]["resourceClaims"] for one in groups_]
    assert claims == [[{"name": "accelerators", "resourceClaimTemplateName": template["metadata"]["name"]}]]
    assert template["metadata"]["name"].startswith("chat.service-replica-")
    assert template["metadata"]["labels"]["rltrain.dev/service"] == "chat"
