"""Pools: where the pods of a role may go, which nodes they ask for, and what they get there."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import GPU_POOLS, container, groups, make_plan, make_profile, refused

from rl_api.profile import PoolSpec
from rl_operator.plan.pools import pod_placement, where

_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
LIKE_POOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "nodeSelector": {"gpu": "h100", "capacity": name},
        "tolerations": taints,
        "acceleratorResource": "nvidia.com/gpu",
    }
    for name, taints in (
        ("owned", [_TAINT]),
        ("spot", [_TAINT, {"key": "spot", "operator": "Exists"}]),
        ("cloud", [_TAINT]),
    )
] + [
    {
        "name": "slices",
        "nodeSelector": {"gpu": "mig"},
        "acceleratorResource": "nvidia.com/mig-1g.10gb",
        "runtimeClass": "nvidia",
    },
    {"name": "anywhere", "acceleratorResource": "nvidia.com/gpu"},
]


LIMITS = {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "100Gi"}
"""Of a pod with one thread in a run with accelerators."""


class TestPools:
    def test_each_role_goes_to_its_pool(self) -> None:
        spec = {"sampler": {"pools": ["spot"]}, "learner": {"pools": ["h100"]}}
        found = groups(make_plan(spec, make_profile(default=True, pools=GPU_POOLS)))
        assert "nodeSelector" not in found["head"]["template"]["spec"], "the head goes to the CPU pool"
        assert found["learner"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
        assert found["learner"]["template"]["spec"]["tolerations"][0] == {
            "key": "nvidia.com/gpu",
            "operator": "Exists",
            "effect": "NoSchedule",
        }
        assert found["sampler"]["template"]["spec"]["runtimeClassName"] == "nvidia"
        assert container(found["sampler"])["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
        assert container(found["learner"])["resources"]["limits"] == LIMITS | {"nvidia.com/gpu": "1"}
        assert found["learner"]["rayStartParams"]["num-gpus"] == "1"
        assert container(found["head"])["image"].endswith("-cpu")
        assert container(found["learner"])["image"].endswith("-gpu")

    def test_a_lost_node_is_given_up_after_half_a_minute_unless_the_pool_says_otherwise(self) -> None:
        lost = {"operator": "Exists", "effect": "NoExecute"}
        unreachable, silent = "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"
        patient = [{"key": unreachable, **lost, "tolerationSeconds": 600}]
        for tolerations, seconds in (
            ([], {unreachable: 30, silent: 30}),
            (patient, {unreachable: 600, silent: 30}),
        ):
            pools = [{"name": "cpu", "tolerations": tolerations}]
            found = groups(make_plan({}, make_profile(default=True, pools=pools)))
            for role in ("head", "learner", "sampler"):
                rendered = found[role]["template"]["spec"]["tolerations"]
                assert {one["key"]: one["tolerationSeconds"] for one in rendered} == seconds
                assert len(rendered) == len(seconds)

    def test_roles_that_name_no_pool_go_to_the_first(self) -> None:
        effective = make_plan({}, make_profile(default=True, pools=GPU_POOLS))
        assert [role.pool.name for role in effective.roles] == ["cpu", "h100", "h100"]
        assert effective.role("sampler").accelerators == 1

    def test_several_pools_are_taken_in_their_order(self) -> None:
        profile = make_profile(default=True, pools=[*LIKE_POOLS, {"name": "cpu"}])
        spec = {"sampler": {"pools": ["spot", "owned", "cloud"]}, "learner": {"pools": ["owned"]}}
        found = groups(make_plan(spec, profile))
        assert set(found) == {"head", "learner", "sampler"}, "one worker group, whatever the number of pools"
        assert "affinity" not in found["learner"]["template"]["spec"]
        pod = found["sampler"]["template"]["spec"]
        assert "nodeSelector" not in pod
        affinity = pod["affinity"]["nodeAffinity"]

        def term(capacity: str) -> dict[str, Any]:
            keys = {"capacity": capacity, "gpu": "h100"}
            return {
                "matchExpressions": [
                    {"key": key, "operator": "In", "values": [value]} for key, value in keys.items()
                ]
            }

        required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert required == [term("spot"), term("owned"), term("cloud")]
        assert affinity["preferredDuringSchedulingIgnoredDuringExecution"] == [
            {"weight": 100, "preference": term("spot")},
            {"weight": 50, "preference": term("owned")},
        ]
        taints = [one["key"] for one in pod["tolerations"]]
        assert taints[:2] == ["nvidia.com/gpu", "spot"], "those of all pools, each once"
        assert container(found["sampler"])["resources"]["limits"]["nvidia.com/gpu"] == "1"

    def test_the_trainer_reads_which_pools_were_chosen(self) -> None:
        profile = make_profile(default=True, pools=[*LIKE_POOLS, {"name": "cpu"}])
        effective = make_plan({"sampler": {"pools": ["owned", "spot"]}}, profile)
        assert effective.document["spec"]["sampler"]["pools"] == ["owned", "spot"]
        assert effective.document["spec"]["learner"]["pools"] == ["owned"], "the profile's first"

    @pytest.mark.parametrize(
        ("names", "sentence"),
        [
            (
                ["owned", "mine"],
                "spec.sampler.pools[1]: found 'mine', allowed: a pool of profile shared: owned, spot",
            ),
            (
                ["mine", "owned"],
                "spec.sampler.pools[0]: found 'mine', allowed: a pool of profile shared: owned, spot",
            ),
            (
                ["owned", "slices"],
                "spec.sampler.pools[1]: found 'slices' (acceleratorResource nvidia.com/mig-1g.10gb, runtimeClass "
                "nvidia), allowed beside 'owned': pools whose pods are alike (acceleratorResource nvidia.com/gpu, "
                "runtimeClass none)",
            ),
            (
                ["anywhere", "owned"],
                "spec.sampler.pools[0]: found 'anywhere', which has no nodeSelector, allowed where several pools",
            ),
        ],
    )
    def test_pools_that_do_not_go_together(self, names: list[str], sentence: str) -> None:
        found = refused({"sampler": {"pools": names}}, make_profile(default=True, pools=LIKE_POOLS))
        assert found.reason == "InvalidSpec"
        assert sentence in found.message
        assert ";" not in found.message

    def test_each_of_several_pools_must_be_able_to_take_all(self) -> None:
        spot = LIKE_POOLS[1] | {"limits": {"maxReplicas": 2}, "acceleratorsPerNode": 4}
        pools = [LIKE_POOLS[0], spot, {"name": "cpu"}]
        profile = make_profile(default=True, pools=pools)
        spec = {"sampler": {"pools": ["owned", "spot"], "replicas": 3}}
        assert (
            "spec.sampler.replicas: found 3, allowed: at most 2, the limit of pool spot"
            in refused(spec, profile).message
        )
        spec = {"sampler": {"pools": ["owned", "spot"], "replicas": 2, "tensorParallelSize": 8}}
        assert (
            "spec.sampler.tensorParallelSize: found 8, allowed: at most 4, what a node of pool spot has"
            in refused(spec, profile).message
        )

    def test_however_many_pools_there_are_an_earlier_one_weighs_no_less(self) -> None:
        pools = [PoolSpec(name=f"p{number}", node_selector={"n": str(number)}) for number in range(402)]
        preferred = pod_placement(pools)["affinity"]["nodeAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        weights = [term["weight"] for term in preferred]
        assert (len(weights), weights[0], weights[-1]) == (401, 100, 1)
        assert weights == sorted(weights, reverse=True)

    def test_the_first_of_two_pools_is_preferred(self) -> None:
        pools = [PoolSpec(name=name, node_selector={"n": name}) for name in "ab"]
        affinity = pod_placement(pools)["affinity"]["nodeAffinity"]
        terms = [{"matchExpressions": [{"key": "n", "operator": "In", "values": [name]}]} for name in "ab"]
        assert affinity == {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": terms[0]}],
        }

    def test_pools_in_sentences(self) -> None:
        one, other = PoolSpec(name="a"), PoolSpec(name="b")
        assert (where([one]), where([one, other])) == ("pool a", "pools a, b")

    def test_no_accelerators_are_asked_for_where_none_are_wanted(self) -> None:
        pools = [GPU_POOLS[0] | {"withoutAccelerators": True}]
        profile = make_profile(default=True, pools=pools)
        found = groups(make_plan({"sampler": {"pools": ["h100"], "resources": {"accelerators": 0}}}, profile))
        assert container(found["sampler"])["resources"]["limits"] == LIMITS

    def test_the_head_avoids_spot_nodes(self) -> None:
        pools = [{"name": "a", "spot": True}, {"name": "b"}]
        assert make_plan({}, make_profile(default=True, pools=pools)).role("head").pool.name == "b"

    def test_images_of_the_profile(self) -> None:
        profile = make_profile(default=True, pools=GPU_POOLS, images={"cpu": "c:1", "gpu": "g:1"})
        effective = make_plan({}, profile)
        assert [role.image for role in effective.roles] == ["c:1", "g:1", "g:1"]
        assert {role.image for role in make_plan({"image": "mine:2"}, profile).roles} == {"mine:2"}

    def test_cpu_and_memory(self) -> None:
        effective = make_plan({"sampler": {"resources": {"cpu": 1.5, "memory": "3Gi"}, "threads": 2}})
        sampler = groups(effective)["sampler"]
        assert container(sampler)["resources"]["requests"] == {
            "cpu": "1500m",
            "memory": "3Gi",
            "ephemeral-storage": "256Mi",
        }
        assert sampler["rayStartParams"]["num-cpus"] == "2"
        learner = groups(make_plan({"learner": {"threads": 2}}))["learner"]
        assert container(learner)["resources"] == {
            "requests": {"cpu": "200m", "memory": "1536Mi", "ephemeral-storage": "256Mi"},
            "limits": {"cpu": "16", "memory": "1536Mi", "ephemeral-storage": "20Gi"},
        }
        assert learner["rayStartParams"]["num-cpus"] == "2"
