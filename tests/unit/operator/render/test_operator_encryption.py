from __future__ import annotations

import base64
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, container, groups, make_plan, make_profile

from rl_operator.model.tokens import AUTHORITY, RAY, STATUS_SERVER, derive_token
from rl_operator.render.config import secret
from rl_operator.render.pods import NO_DEVICES

ON: dict[str, Any] = {"scheduling": {"encryption": True}}
IMAGES = {"cpu": "ours:cpu", "gpu": "ours:gpu"}


def pods(spec: dict[str, Any], profile: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The pods' specs by role."""
    return {role: group["template"]["spec"] for role, group in groups(make_plan(spec, profile)).items()}


class TestPods:
    def test_ray_uses_what_a_container_before_it_has_made(self) -> None:
        for pod in pods(ON).values():
            (ray,), (first,) = pod["containers"], pod["initContainers"]
            env = {one["name"]: one.get("value") for one in ray["env"]}
            assert env["RAY_USE_TLS"] == "1"
            [shared] = [one for one in pod["volumes"] if one["name"] == "tls"]
            assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}, "on no disk"
            [read] = [one for one in ray["volumeMounts"] if one["name"] == "tls"]
            [written] = [one for one in first["volumeMounts"] if one["name"] == "tls"]
            assert read == written | {"readOnly": True}
            folder = written["mountPath"]
            files = {"SERVER_CERT": "tls.crt", "SERVER_KEY": "tls.key", "CA_CERT": "ca.crt"}
            assert {name: env[f"RAY_TLS_{name}"] for name in files} == {
                name: f"{folder}/{file}" for name, file in files.items()
            }
            assert first["command"][:5] == [
                "python",
                "-m",
                "rl_trainer.run.certificates",
                "/etc/rltrain-seed/authority_seed",
                folder,
            ]

    def test_only_the_container_before_it_has_the_seed(self) -> None:
        for pod in pods(ON).values():
            (ray,), (first,) = pod["containers"], pod["initContainers"]
            [seed] = [one for one in pod["volumes"] if one["name"] == "seed"]
            assert seed["secret"] == {
                "secretName": "sums-1-12345678",
                "items": [{"key": "authority_seed", "path": "authority_seed"}],
                "defaultMode": 0o440,
            }
            assert {"name": "seed", "mountPath": "/etc/rltrain-seed", "readOnly": True} in first[
                "volumeMounts"
            ]
            assert "seed" not in [one["name"] for one in ray["volumeMounts"]]

    def test_code_in_a_container_of_its_own_has_neither_seed_nor_certificates(self) -> None:
        for role in ("head", "sampler"):
            _, code = pods(ON | {"task": {"isolation": "strict"}})[role]["containers"]
            assert not {"tls", "seed"} & {one["name"] for one in code["volumeMounts"]}
            assert not any("TLS" in one["name"] for one in code["env"])

    def test_a_pod_is_called_by_its_addresses_and_the_head_by_that_of_its_service(self) -> None:
        # What Kubernetes fills in: a variable of the pod's own, and one that KubeRay gives.
        said = {role: pod["initContainers"][0]["command"][5:] for role, pod in pods(ON).items()}
        worker = ["$(RLTRAIN_POD_IPS)"]
        assert said == {"head": [*worker, "$(FQ_RAY_IP)"], "learner": worker, "sampler": worker}
        for pod in pods(ON).values():
            where = {"fieldRef": {"fieldPath": "status.podIPs"}}
            assert {"name": "RLTRAIN_POD_IPS", "valueFrom": where} in pod["initContainers"][0]["env"]

    def test_it_passes_the_restricted_standard_and_has_sizes_and_no_devices(self) -> None:
        profile = make_profile(default=True, pools=GPU_POOLS)
        for pod in pods(ON | {"learner": {"pools": ["h100"]}}, profile).values():
            (ray,), (first,) = pod["containers"], pod["initContainers"]
            assert first["securityContext"] == ray["securityContext"]
            for part in ("requests", "limits"):
                assert first["resources"][part].keys() == {"cpu", "memory", "ephemeral-storage"}
            env = {one["name"]: one.get("value") for one in first["env"]}
            assert env.items() >= NO_DEVICES.items()

    @pytest.mark.parametrize(
        ("image", "profile", "expected"),
        [
            (None, {}, ("rltrain-trainer:0.1.0-cpu", "rltrain-trainer:0.1.0-gpu")),
            (None, {"images": IMAGES}, ("ours:cpu", "ours:gpu")),
            # A program's image may hold an older trainer, and the large one is not pulled for this alone.
            ("mine:1", {}, ("rltrain-trainer:0.1.0-cpu", "rltrain-trainer:0.1.0-cpu")),
            ("mine:1", {"images": IMAGES}, ("ours:cpu", "ours:cpu")),
        ],
    )
    def test_its_image_is_the_platforms(
        self, image: str | None, profile: dict[str, Any], expected: tuple[str, str]
    ) -> None:
        made = make_profile(default=True, pools=GPU_POOLS, **profile)
        found = pods(ON | {"image": image, "learner": {"pools": ["h100"]}}, made)
        assert (
            found["head"]["initContainers"][0]["image"],
            found["learner"]["initContainers"][0]["image"],
        ) == expected

    def test_it_is_not_pulled_anew_because_the_runs_own_image_is(self) -> None:
        allow = {"images": {"alwaysPull": True}}
        head = pods(ON | {"image": "mine:1"}, make_profile(default=True, allow=allow))["head"]
        assert head["containers"][0]["imagePullPolicy"] == "Always"
        assert head["initContainers"][0]["imagePullPolicy"] == "IfNotPresent"

    def test_a_profile_can_make_it_the_default(self) -> None:
        profile = make_profile(default=True, defaults=ON)
        assert all("initContainers" in pod for pod in pods({}, profile).values())
        off = {"scheduling": {"encryption": False}}
        assert not any("initContainers" in pod for pod in pods(off, profile).values())

    def test_without_it_pods_are_what_they_were(self) -> None:
        for role, pod in pods({}).items():
            assert "initContainers" not in pod
            assert {one["name"] for one in pod["volumes"]} & {"tls", "seed"} == set(), role
            assert not any("TLS" in one["name"] for one in container(groups(make_plan())[role])["env"])


class TestSecret:
    def test_the_seed_is_another_in_each_attempt_and_no_other_token(self) -> None:
        encrypted = make_plan(ON)
        seeds = [
            base64.b64decode(secret(encrypted, number, b"key")["data"]["authority_seed"]) for number in (1, 2)
        ]
        tokens = [
            derive_token(b"key", "12345678-90ab", 1, purpose).encode()
            for purpose in (AUTHORITY, RAY, STATUS_SERVER)
        ]
        assert seeds[0] == tokens[0]
        assert len({*seeds, *tokens}) == 4

    def test_there_is_none_where_nobody_needs_it(self) -> None:
        assert secret(make_plan(), 1, b"key")["data"].keys() == {"token", "auth_token"}
