from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, SETTINGS, VERL, container, groups, make_plan, make_profile, make_run

from rl_api.progress import SPEC_HASH_VARIABLE
from rl_operator.plan.effective import Effective, plan
from rl_operator.render.rayjob import ray_job
from rl_operator.render.secrets import EXPORT


def secrets_of(group: dict[str, Any]) -> list[str]:
    """Secrets of the user's in a pod, in the order in which they are mounted."""
    names = {mount["name"] for mount in container(group)["volumeMounts"]}
    volumes = [one for one in group["template"]["spec"]["volumes"] if one["name"] in names]
    return [one["secret"]["secretName"] for one in volumes if one["name"].startswith("secret-")]


class TestPods:
    def test_they_pass_the_restricted_standard(self) -> None:
        for role, group in groups(make_plan()).items():
            spec = group["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["automountServiceAccountToken"] is False
            security = container(group)["securityContext"]
            assert security == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert group["template"]["metadata"]["labels"]["rltrain.dev/role"] == role

    def test_only_the_head_has_the_checkpoints_and_the_token(self) -> None:
        found = groups(make_plan())
        head = found["head"]["template"]["spec"]
        assert head["restartPolicy"] == "Never"
        mounts = {mount["mountPath"]: mount for mount in container(found["head"])["volumeMounts"]}
        assert mounts["/var/lib/rltrain"]["subPath"] == "sums-12345678"
        assert {"name": "data", "persistentVolumeClaim": {"claimName": "ckpt"}} in head["volumes"]
        for role in ("learner", "sampler"):
            paths = [mount["mountPath"] for mount in container(found[role])["volumeMounts"]]
            assert paths == ["/tmp", "/dev/shm"]
            names = [variable["name"] for variable in container(found[role])["env"]]
            assert not any(name.startswith("RLTRAIN_STATUS_TOKEN") for name in names)
            assert "RLTRAIN_FENCE" not in names, "only the driver writes"

    def test_only_the_driver_is_told_the_hash_of_the_spec_that_the_status_shows(self) -> None:
        plan = make_plan()
        for role, group in groups(plan).items():
            told = [one["value"] for one in container(group)["env"] if one["name"] == SPEC_HASH_VARIABLE]
            assert told == ([plan.digest] if role == "head" else [])

    def test_a_sampler_that_is_told_to_go_gives_its_groups_back_within_the_grace(self) -> None:
        found = groups(make_plan())
        sampler = container(found["sampler"])
        module, at, seconds = sampler["lifecycle"]["preStop"]["exec"]["command"][2:]
        assert find_spec(module) is not None
        assert {"name": "RLTRAIN_LEAVE_SOCKET", "value": at} in sampler["env"]
        assert float(seconds) < found["sampler"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for role in ("head", "learner"):
            assert "lifecycle" not in container(found[role])

    def test_a_program_of_the_users_is_not_asked_to_give_anything_back(self) -> None:
        trainer = {"kind": "command", "command": ["python", "train.py"], "workers": ["sampler"]}
        sampler = container(groups(make_plan({"trainer": trainer}))["sampler"])
        assert "lifecycle" not in sampler

    def test_the_token_is_a_file_as_every_process_of_ray_shows_its_environment(self) -> None:
        head = groups(make_plan())["head"]
        env = {one["name"]: one for one in container(head)["env"]}
        assert "RLTRAIN_STATUS_TOKEN" not in env
        assert env["RLTRAIN_STATUS_TOKEN_FILE"]["value"] == "/etc/rltrain-token/token"
        mount = {"name": "token", "mountPath": "/etc/rltrain-token", "readOnly": True}
        assert mount in container(head)["volumeMounts"]
        items = [{"key": "token", "path": "token"}]
        secret = {"secretName": "sums-1-12345678", "items": items, "defaultMode": 0o440}
        assert {"name": "token", "secret": secret} in head["template"]["spec"]["volumes"]

    def test_ray_answers_nobody_without_the_token_of_the_run(self) -> None:
        cluster = ray_job(make_plan(), 1)["spec"]["rayClusterSpec"]
        assert cluster["authOptions"] == {"mode": "token", "secretName": "sums-1-12345678"}
        for group in groups(make_plan({"secrets": ["hub"]})).values():
            # Said here, and not left to KubeRay: what `env` says wins over any Secret.
            env = {one["name"]: one for one in container(group)["env"]}
            assert env["RAY_AUTH_MODE"]["value"] == "token"
            key = {"name": "sums-1-12345678", "key": "auth_token"}
            assert env["RAY_AUTH_TOKEN"]["valueFrom"] == {"secretKeyRef": key}

    def test_secrets_of_the_run_reach_the_head_alone_and_those_of_the_task_where_code_of_the_users_runs(
        self,
    ) -> None:
        found = groups(make_plan({"secrets": ["hub", "object-store"], "task": {"secrets": ["judge"]}}))
        assert {role: secrets_of(group) for role, group in found.items()} == {
            "head": ["hub", "object-store", "judge"],
            "learner": [],
            "sampler": ["judge"],
        }

    def test_learners_get_the_secrets_of_the_run_where_they_upload_checkpoints(self) -> None:
        storage = {"persistentVolumeClaim": None, "s3": "s3://bucket/folder"}
        found = groups(make_plan({"secrets": ["object-store"], "checkpoint": {"storage": storage}}))
        assert {role: secrets_of(group) for role, group in found.items()} == {
            "head": ["object-store"],
            "learner": ["object-store"],
            "sampler": [],
        }

    def test_workers_of_a_program_of_its_own_get_the_secrets_too(self) -> None:
        found = groups(make_plan(VERL | {"secrets": ["hub"]}, make_profile(default=True, pools=GPU_POOLS)))
        assert {role: secrets_of(group) for role, group in found.items()} == {
            "head": ["hub"],
            "learner": ["hub"],
        }

    def test_a_secret_becomes_variables_of_the_processes(self) -> None:
        for group in [groups(make_plan({"secrets": ["hub", "object-store"]}))["head"]]:
            volumes = {one["name"]: one for one in group["template"]["spec"]["volumes"]}
            for number, name in enumerate(("hub", "object-store")):
                assert volumes[f"secret-0{number}"]["secret"] == {"secretName": name, "defaultMode": 0o440}
                mount = {
                    "name": f"secret-0{number}",
                    "mountPath": f"/etc/rltrain-secrets/0{number}",
                    "readOnly": True,
                }
                assert mount in container(group)["volumeMounts"]
            assert container(group)["args"] == [EXPORT]
        assert all("args" not in container(group) for group in groups(make_plan()).values())

    def test_no_secret_is_in_the_environment_of_a_container(self) -> None:
        # There it would overrule what the device plugin says, of a pod with accelerators too.
        spec = {"secrets": ["hub"], "sampler": {"pools": ["h100"]}}
        found = groups(make_plan(spec, make_profile(default=True, pools=[*GPU_POOLS[1:2], GPU_POOLS[0]])))
        assert container(found["sampler"])["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert all("envFrom" not in container(group) for group in found.values())

    def test_pods_without_accelerators_get_no_devices_whatever_their_image_says(self) -> None:
        found = groups(
            make_plan({"sampler": {"pools": ["h100"]}}, make_profile(default=True, pools=GPU_POOLS))
        )
        devices = {
            role: {
                one["name"]: one.get("value") for one in container(group)["env"] if "DEVICES" in one["name"]
            }
            for role, group in found.items()
        }
        none = {
            "NVIDIA_VISIBLE_DEVICES": "void",
            "AMD_VISIBLE_DEVICES": "",
            "HABANA_VISIBLE_DEVICES": "void",
            "ASCEND_VISIBLE_DEVICES": "",
        }
        # That of a pod with accelerators is the device plugin's to say.
        assert devices == {"head": none, "learner": {}, "sampler": {}}

    def test_everything_has_a_size(self) -> None:
        small = make_plan({"checkpoint": {"storage": {"persistentVolumeClaim": None, "s3": "s3://bucket"}}})
        large = make_plan(VERL | {"checkpoint": None}, make_profile(default=True, pools=GPU_POOLS))
        for effective, disk in ((small, "20Gi"), (large, "100Gi")):
            for group in groups(effective).values():
                resources = container(group)["resources"]
                for part in ("requests", "limits"):
                    assert {"cpu", "memory", "ephemeral-storage"} <= resources[part].keys()
                assert resources["limits"]["ephemeral-storage"] == disk
                pod = group["template"]["spec"]
                sizes = {one["name"]: one["emptyDir"] for one in pod["volumes"] if "emptyDir" in one}
                memory = {"medium": "Memory", "sizeLimit": resources["limits"]["memory"]}
                assert sizes.pop("shm") == memory, "counted as memory"
                assert all(size == {"sizeLimit": disk} for size in sizes.values())

    @pytest.mark.parametrize(("pool", "gpus", "cpus"), [("h100", "4", "1"), ("cpu", None, "4")])
    def test_a_divided_sampler_is_one_pod_with_shared_memory(
        self, pool: str, gpus: str | None, cpus: str
    ) -> None:
        """The processes of its parts exchange what they compute through /dev/shm: 64 MiB, a runtime's usual, are too few."""
        divided = {"engine": "vllm", "tensorParallelSize": 2, "pipelineParallelSize": 2, "pools": [pool]}
        spec = {"sampler": divided | {"resources": {"memory": "48Gi"}}}
        group = groups(make_plan(spec, make_profile(default=True, pools=GPU_POOLS)))["sampler"]
        assert (group["replicas"], group["rayStartParams"]["num-cpus"]) == (1, cpus)
        one, pod = container(group), group["template"]["spec"]
        assert one["resources"]["limits"].get("nvidia.com/gpu") == gpus
        assert {"name": "shm", "mountPath": "/dev/shm"} in one["volumeMounts"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "48Gi"}} in pod["volumes"]

    @pytest.mark.parametrize(
        ("limit", "asked"), [("100Mi", "100Mi"), ("256Mi", "256Mi"), ("300M", "256Mi"), ("1Gi", "256Mi")]
    )
    def test_no_more_disk_is_asked_for_than_there_may_be(self, limit: str, asked: str) -> None:
        spec = {"sampler": {"resources": {"ephemeralStorage": limit}}}
        resources = container(groups(make_plan(spec))["sampler"])["resources"]
        assert resources["limits"]["ephemeral-storage"] == limit
        assert resources["requests"]["ephemeral-storage"] == asked

    @pytest.mark.parametrize(("threads", "cpu", "limit"), [(1, None, "8"), (16, None, "128"), (1, 2.5, "24")])
    def test_cores_have_a_limit_that_slows_down_no_small_run(
        self, threads: int, cpu: float | None, limit: str
    ) -> None:
        spec = {"sampler": {"threads": threads, "resources": {"cpu": cpu}}}
        assert container(groups(make_plan(spec))["sampler"])["resources"]["limits"]["cpu"] == limit

    def test_without_a_claim_the_disk_is_the_pods_own(self) -> None:
        storage = {"persistentVolumeClaim": None, "s3": "s3://bucket/folder"}
        head = groups(make_plan({"checkpoint": {"storage": storage}}))["head"]
        assert {"name": "data", "emptyDir": {"sizeLimit": "20Gi"}} in head["template"]["spec"]["volumes"]
        assert all("subPath" not in mount for mount in container(head)["volumeMounts"])
        assert make_plan({"checkpoint": None}).claim is None

    def test_workers_that_write_have_the_claim_where_there_is_one(self) -> None:
        profile = make_profile(default=True, pools=GPU_POOLS)
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": "ckpt"}}
        for spec, volumes in ((VERL, [claim]), (VERL | {"checkpoint": None}, [])):
            pod = groups(make_plan(spec, profile))["learner"]["template"]["spec"]
            assert pod["volumes"][2:] == volumes

    def test_learners_have_a_claim_that_several_nodes_can_mount(self) -> None:
        effective = make_plan()
        for shared in (False, True):
            found = groups(replace(effective, shared_claim=shared))
            (head,) = [one for one in container(found["head"])["volumeMounts"] if one["name"] == "data"]
            volume = {"name": "data", "persistentVolumeClaim": {"claimName": "ckpt"}}
            for role, there in (("learner", shared), ("sampler", False)):
                assert (head in container(found[role])["volumeMounts"]) == there
                assert (volume in found[role]["template"]["spec"]["volumes"]) == there
        trainer = {"kind": "command", "command": ["train"], "workers": ["learner"]}
        own = make_plan({"trainer": trainer})
        learner = container(groups(replace(own, shared_claim=True))["learner"])
        assert all(one["name"] != "data" for one in learner["volumeMounts"]), (
            "it may write what it likes there"
        )

    def test_only_the_head_of_verl_is_told_what_a_node_has(self) -> None:
        found = groups(make_plan(VERL, make_profile(default=True, pools=GPU_POOLS)))
        told = {"name": "RLTRAIN_ACCELERATORS", "value": "8"}
        assert {role: told in container(group)["env"] for role, group in found.items()} == {
            "head": True,
            "learner": False,
        }

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
