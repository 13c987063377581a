from __future__ import annotations

import pytest
from operator_worlds import SETTINGS, container, groups, make_plan, make_profile, make_run

from rl_operator.plan.effective import Effective, plan
from rl_operator.render.rayjob import ray_job


class TestPods:
    def test_they_pass_the_restricted_standard(self) -> None:
        for role, group in groups(make_plan()).items():
            spec = group["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["automountServiceAccountToken"] is False
            security = container(group)["securityContext"]
            assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert group["template"]["metadata"]["labels"]["rltrain.dev/role"] == role

    def test_only_the_head_has_the_checkpoints_and_the_token(self) -> None:
        found = groups(make_plan())
        head = found["head"]["template"]["spec"]
        assert head["restartPolicy"] == "Never"
        mounts = {mount["mountPath"]: mount for mount in container(found["head"])["volumeMounts"]}
        assert mounts["/var/lib/rltrain"]["subPath"] == "sums-12345678"
        assert {"name": "data", "persistentVolumeClaim": {"claimName": "ckpt"}} in head["volumes"]
        for role in ("learner", "sampler"):
            assert container(found[role])["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
            names = [variable["name"] for variable in container(found[role])["env"]]
            assert "RLTRAIN_STATUS_TOKEN" not in names
            assert "RLTRAIN_FENCE" not in names, "only the driver writes"

    def test_secrets_of_the_run_reach_every_pod(self) -> None:
        for group in groups(make_plan({"secrets": ["hub", "object-store"]})).values():
            sources = [{"secretRef": {"name": "hub"}}, {"secretRef": {"name": "object-store"}}]
            assert container(group)["envFrom"] == sources
        assert all("envFrom" not in container(group) for group in groups(make_plan()).values())

    def test_without_a_claim_the_disk_is_the_pods_own(self) -> None:
        storage = {"persistentVolumeClaim": None, "s3": "s3://bucket/folder"}
        head = groups(make_plan({"checkpoint": {"storage": storage}}))["head"]
        assert {"name": "data", "emptyDir": {}} in head["template"]["spec"]["volumes"]
        assert all("subPath" not in mount for mount in container(head)["volumeMounts"])
        assert make_plan({"checkpoint": None}).claim is None

    @pytest.mark.parametrize("named", ["s3://bucket/folder", "s3://bucket/folder/"])
    def test_runs_that_name_the_same_object_store_do_not_meet_there(self, named: str) -> None:
        own = make_plan({"checkpoint": {"storage": {"persistentVolumeClaim": None, "s3": named}}})
        run = make_run()
        del run["spec"]["checkpoint"]
        defaults = {"checkpoint": {"storage": {"s3": named}}}
        of_the_profile = plan(run, [make_profile(default=True, defaults=defaults)], SETTINGS)
        for effective in (own, of_the_profile):
            assert isinstance(effective, Effective)
            storage = effective.document["spec"]["checkpoint"]["storage"]
            assert storage["s3"] == "s3://bucket/folder/sums-12345678"

    def test_every_head_of_every_attempt_has_a_fence_of_its_own(self) -> None:
        for attempt in (1, 2):
            spec = ray_job(make_plan(), attempt)["spec"]["rayClusterSpec"]["headGroupSpec"]
            env = container(spec)["env"]
            names = [one["name"] for one in env]
            assert env[names.index("RLTRAIN_FENCE")]["value"] == f"12345678-90ab/{attempt}/$(RLTRAIN_POD)"
            # The kubelet knows a variable in those that come after it.
            pod = {"name": "RLTRAIN_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
            assert env.index(pod) < names.index("RLTRAIN_FENCE")
