from __future__ import annotations

from operator_worlds import GPU_POOLS, container, groups, make_plan, make_profile

from rl_operator.render.gang.parts import head_first
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job


class TestCluster:
    def test_kuberay_takes_it(self) -> None:
        """The rules of KubeRay's own validation that bear on what is rendered."""
        for effective in (make_plan(), make_plan({}, make_profile(default=True, pools=GPU_POOLS))):
            spec = ray_job(effective, 1)["spec"]
            assert spec["submissionMode"] == "HTTPMode"
            assert spec["shutdownAfterJobFinishes"] is True
            assert "deletionStrategy" not in spec
            names = [group["groupName"] for group in spec["rayClusterSpec"]["workerGroupSpecs"]]
            assert len(set(names)) == len(names) < 17
            assert "head" not in names
            for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
                assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
                assert "resources" not in group
                assert all(isinstance(value, str) for value in group["rayStartParams"].values())
                assert container(group)["name"] == "ray"

    def test_ray_resources_mark_the_roles(self) -> None:
        found = groups(make_plan())
        assert found["sampler"]["rayStartParams"]["resources"] == '"{\\"sampler\\":1}"'
        sampler = found["sampler"]
        assert (sampler["replicas"], sampler["minReplicas"], sampler["maxReplicas"]) == (1, 1, 2)

    def test_a_sampler_of_several_pods_is_a_replica_of_several_hosts(self) -> None:
        sampler = {"engine": "vllm", "pipelineParallelSize": 2, "podsPerReplica": 2, "replicas": 3}
        effective = make_plan({"sampler": sampler})
        found = groups(effective)["sampler"]
        counts = {name: found[name] for name in ("replicas", "minReplicas", "maxReplicas", "numOfHosts")}
        assert counts == {"replicas": 3, "minReplicas": 3, "maxReplicas": 3, "numOfHosts": 2}
        assert [member.count for member in head_first(ray_job(effective, 1)["spec"]["rayClusterSpec"])] == [
            *(1, 1, 6)
        ]
        assert "numOfHosts" not in groups(make_plan())["sampler"], "as objects of earlier operators have it"

    def test_interactive(self) -> None:
        effective = make_plan({"workload": "Cluster", "scheduling": {"queue": "q", "integration": "label"}})
        cluster = ray_cluster(effective, 1)
        assert cluster["kind"] == "RayCluster"
        assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
        assert cluster["spec"] == {"suspend": True, **ray_job(effective, 1)["spec"]["rayClusterSpec"]}
