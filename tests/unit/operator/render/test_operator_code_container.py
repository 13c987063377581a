"""`task.isolation: strict`: the second container of a pod, and what it shares with the first."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import groups, make_plan, make_profile

from rl_operator.model.names import CODE_CONTAINER
from rl_operator.render.secrets import EXPORT

STRICT = {"secrets": ["hub"], "task": {"isolation": "strict", "secrets": ["judge"]}}
SOCKET = {"name": "RLTRAIN_CODE_SOCKET", "value": "/run/rltrain-code/socket"}


def pods(**task: Any) -> dict[str, dict[str, Any]]:
    """Specs of the pods, by role."""
    plan = make_plan(STRICT | {"task": STRICT["task"] | task})
    return {role: group["template"]["spec"] for role, group in groups(plan).items()}


def mounts(container: dict[str, Any]) -> set[str]:
    return {one["name"] for one in container["volumeMounts"]}


def test_it_is_behind_rays_where_code_of_the_users_is_called() -> None:
    names = {role: [one["name"] for one in spec["containers"]] for role, spec in pods().items()}
    assert names == {"head": ["ray", CODE_CONTAINER], "learner": ["ray"], "sampler": ["ray", CODE_CONTAINER]}
    told = {role: SOCKET in spec["containers"][0]["env"] for role, spec in pods().items()}
    assert told == {"head": True, "learner": False, "sampler": True}
    assert all(len(group["template"]["spec"]["containers"]) == 1 for group in groups(make_plan()).values())


@pytest.mark.parametrize("role", ["head", "sampler"])
def test_it_has_another_user_and_nothing_of_the_runs(role: str) -> None:
    spec = pods()[role]
    ray, code = spec["containers"]
    assert spec["securityContext"]["runAsUser"] == 1000
    assert code["securityContext"] == {
        "runAsUser": 1001,
        "runAsGroup": 1001,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert code["image"] == ray["image"]
    assert mounts(code) == {"code-tmp", "code-socket", "code-secret-00"}
    assert mounts(ray) & mounts(code) == {"code-socket"}
    assert {one["name"]: one.get("value") for one in code["env"]} == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "AMD_VISIBLE_DEVICES": "",
        "HABANA_VISIBLE_DEVICES": "void",
        "ASCEND_VISIBLE_DEVICES": "",
        "HOME": "/tmp",
    }
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert volumes["code-secret-00"]["secret"]["secretName"] == "judge"
    assert volumes["code-socket"] == {
        "name": "code-socket",
        "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"},
    }
    shared = next(one for one in ray["volumeMounts"] if one["name"] == "code-socket")
    assert shared == {"name": "code-socket", "mountPath": "/run/rltrain-code", "readOnly": True}
    assert spec["automountServiceAccountToken"] is False
    assert not spec.get("shareProcessNamespace")


def test_secrets_are_variables_of_its_process_alone() -> None:
    server = ["python", "-m", "rl_trainer.tasks.code_server", "/run/rltrain-code/socket"]
    assert pods()["sampler"]["containers"][1]["command"] == [
        *("bash", "-c", f'{EXPORT}; exec "$@"', "rltrain"),
        *server,
    ]
    assert pods(secrets=[])["sampler"]["containers"][1]["command"] == server
    assert "args" not in pods()["sampler"]["containers"][0]


def test_it_has_a_size_of_its_own() -> None:
    small = {"cpu": "1000m", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    assert pods()["head"]["containers"][1]["resources"] == {"requests": small, "limits": small}
    spec = pods(resources={"cpu": 0.25, "memory": "3Gi", "ephemeralStorage": "5Gi"})["sampler"]
    large = {"cpu": "250m", "memory": "3Gi", "ephemeral-storage": "5Gi"}
    assert spec["containers"][1]["resources"] == {
        "requests": large,
        "limits": large | {"cpu": "1000m"},
    }
    assert {"name": "code-tmp", "emptyDir": {"sizeLimit": "5Gi"}} in spec["volumes"]


def test_a_profile_can_ask_for_it() -> None:
    plan = make_plan(STRICT, make_profile(default=True, allow={"isolation": "strict"}))
    assert len(groups(plan)["head"]["template"]["spec"]["containers"]) == 2
