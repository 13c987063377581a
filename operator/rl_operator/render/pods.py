"""The one place that renders a pod."""

from __future__ import annotations

from typing import Any, Final

from rl_api.base import amount
from rl_api.planner.first import PRIOR_VARIABLE
from rl_api.progress import SPEC_HASH_VARIABLE, STATUS_TOKEN_FILE_VARIABLE
from rl_api.roles import LEAVE_VARIABLE
from rl_operator.model.names import (
    HEAD,
    LEARNER,
    RAY_PORTS,
    SAMPLER,
    SIMULATOR,
    STATUS_PORT,
    Manifest,
    attempt_name,
    folder_name,
    labels_of,
    secret_name,
    weights_folder_name,
)
from rl_operator.plan.effective import Effective
from rl_operator.plan.pools import pod_placement
from rl_operator.plan.roles import Role
from rl_operator.render.claims import add_claim
from rl_operator.render.code_container import add_code_container
from rl_operator.render.config import CONFIG_KEY, RAY_TOKEN_KEY, TOKEN_KEY
from rl_operator.render.encryption import add_encryption
from rl_operator.render.secrets import add_secrets
from rl_operator.render.topology import add_topology

CONTAINER: Final = "ray"
"""KubeRay takes the first one for that of Ray; there may be one for the user's code behind it."""

CONFIG_FOLDER: Final = "/etc/rltrain"
DATA_FOLDER: Final = "/var/lib/rltrain"
TOKEN_FOLDER: Final = "/etc/rltrain-token"
"""Of the head alone: the token of its status server, and no other."""

_USER: Final = 1000
_POD: Final = "RLTRAIN_POD"
_USUAL_DISK: Final = "256Mi"
"""What a pod writes to its node's disk unless it may not; how much more it will be is known only when it runs."""

NO_DEVICES: Final = {
    "NVIDIA_VISIBLE_DEVICES": "void",
    "AMD_VISIBLE_DEVICES": "",
    "HABANA_VISIBLE_DEVICES": "void",
    "ASCEND_VISIBLE_DEVICES": "",
}
"""What container runtimes hand out devices by, in a pod that has asked for none: images for GPUs say `all`."""

_LEAVE_SOCKET: Final = "/tmp/rltrain-leave"
_GRACE_SECONDS: Final = 30
"""Of a sampler's pod that is told to go. No more than a spot node has that is reclaimed, or a kubelet that shuts down."""
_LEAVE_SECONDS: Final = 20
"""How much of that a sampler may take to give its groups back; it takes a second. The rest is for Ray's own end."""

_AGENT_PORT: Final = 52365
"""Where each Ray node answers whether it is well."""


def pod_template(effective: Effective, role: Role, attempt: int) -> Manifest:
    """The pod template of one role of a run."""
    spec, container = restricted_pod(
        role,
        effective.image_pull_policy,
        _environment(effective, role, attempt),
        effective.spec.scheduling.priority_class,
    )
    metadata = _pod_metadata(effective, role, attempt)
    add_claim(effective.name, role, spec, container)
    add_topology(role, effective.queue is not None, metadata, spec)
    add_secrets(_secrets(effective, role), spec, container)
    add_encryption(effective, role, attempt, spec, NO_DEVICES)
    if role.name == HEAD:
        _add_head_parts(effective, attempt, spec, container)
    if role.name == SAMPLER and effective.backend.samplers_leave:
        _add_leaving(spec, container)
    if role.name == SAMPLER and effective.weights_claim is not None:
        _add_weights(effective, effective.weights_claim, spec, container)
    if role.name == HEAD or (effective.claim is not None and _writes(effective, role)):
        _add_storage(effective, role, spec, container)
    add_code_container(role, effective.spec.task.secrets if role.code else (), NO_DEVICES, spec, container)
    return {"metadata": metadata, "spec": spec}


def _pod_metadata(effective: Effective, role: Role, attempt: int) -> Manifest:
    placed = role.placed
    labels = {**placed.labels, **labels_of(effective.name, attempt, role.name)}
    return {"labels": labels, **({"annotations": dict(placed.annotations)} if placed.annotations else {})}


def restricted_pod(
    role: Role, pull_policy: str, environment: list[Manifest], priority_class: str | None = None
) -> tuple[Manifest, Manifest]:
    """The spec of a pod of Ray's, and its first container, for more to be added. Passes Pod Security `restricted`; holds no
    Kubernetes credentials."""
    container: Manifest = {
        "name": CONTAINER,
        "image": role.image,
        "imagePullPolicy": pull_policy,
        "env": environment,
        "resources": _resources(role),
        # KubeRay's own begins after ten seconds, and everything waits for it: half of the time that Ray takes to start.
        "readinessProbe": {
            "httpGet": {"path": "/api/healthz", "port": _AGENT_PORT},
            "initialDelaySeconds": 1,
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 15,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": role.ephemeral_storage}},
        # For Ray's object store, and what the processes of an engine exchange that is divided over several devices. What is
        # in it counts as memory of the container.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": role.memory}},
    ]
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # Changing the owner of every file of a large checkpoint volume would take minutes at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
        **pod_placement(role.pools, role.placed),
    }
    if priority_class is not None:
        spec["priorityClassName"] = priority_class
    return spec, container


def _writes(effective: Effective, role: Role) -> bool:
    """Whether a worker writes to the claim, which must be one that several nodes can mount: else learners, which then may be
    on other nodes than the head, would wait for it for good."""
    backend = effective.backend
    return backend.workers_write or (
        role.name == LEARNER and backend.learners_write and effective.shared_claim
    )


def _secrets(effective: Effective, role: Role) -> tuple[str, ...]:
    """Of the run where models, data and checkpoints are read and written; of the task where code of the user's runs, unless
    that has a container of its own; of an inference server where it is asked."""
    task, backend = effective.spec.given_task, effective.backend
    uploads = role.name == LEARNER and backend.learners_write and effective.in_object_store
    own = effective.spec.secrets if role.name == HEAD or backend.workers_need_secrets or uploads else ()
    scores = role.name in (HEAD, SAMPLER, SIMULATOR) or (role.name == LEARNER and effective.shared > 0)
    here = task is not None and scores and role.code is None
    server = effective.spec.sampler.endpoint
    of_server = (server.secret,) if server is not None and server.secret and role.name == SAMPLER else ()
    return own + (task.secrets if task is not None and here else ()) + of_server


def _add_storage(effective: Effective, role: Role, spec: Manifest, container: Manifest) -> None:
    data: Manifest = {"name": "data", "mountPath": DATA_FOLDER}
    if effective.claim is not None:
        # Of its own for each run, so that several can share a claim.
        data["subPath"] = folder_name(effective.name, effective.uid)
    storage: Manifest = (
        {"persistentVolumeClaim": {"claimName": effective.claim}}
        if effective.claim
        else {"emptyDir": {"sizeLimit": role.ephemeral_storage}}
    )
    container["volumeMounts"].append(data)
    spec["volumes"].append({"name": "data", **storage})


def _add_weights(effective: Effective, claim: str, spec: Manifest, container: Manifest) -> None:
    """Where an inference server outside the run finds the weights: of a claim that it has mounted as well, a folder of this
    run's own."""
    server = effective.spec.sampler.endpoint
    assert server is not None
    own = weights_folder_name(effective.name, effective.uid)
    mount = {"name": "weights", "mountPath": server.folder.rstrip("/"), "subPath": own}
    container["volumeMounts"].append(mount)
    spec["volumes"].append({"name": "weights", "persistentVolumeClaim": {"claimName": claim}})


def _add_head_parts(effective: Effective, attempt: int, spec: Manifest, container: Manifest) -> None:
    """The head runs the driver: only it reads the run, serves the status and keeps checkpoints."""
    # A head that comes back has lost the run's actors: a lost head ends the attempt, and a new one begins.
    spec["restartPolicy"] = "Never"
    ports = RAY_PORTS | {STATUS_PORT: effective.status_port}
    container["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    container["volumeMounts"].append({"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True})
    spec["volumes"].append(
        {
            "name": "config",
            "configMap": {
                "name": attempt_name(effective.name, attempt),
                "items": [{"key": CONFIG_KEY, "path": CONFIG_KEY}],
            },
        }
    )
    container["volumeMounts"].append({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    spec["volumes"].append(
        {
            "name": "token",
            "secret": {
                "secretName": secret_name(effective.name, effective.uid, attempt),
                "items": [{"key": TOKEN_KEY, "path": TOKEN_KEY}],
                "defaultMode": 0o440,
            },
        }
    )


def _add_leaving(spec: Manifest, container: Manifest) -> None:
    """A sampler whose pod is told to go gives its unfinished groups back before Ray's processes are ended."""
    container["env"].append({"name": LEAVE_VARIABLE, "value": _LEAVE_SOCKET})
    command = ["python", "-m", "rl_trainer.rollout.leaving", _LEAVE_SOCKET, str(_LEAVE_SECONDS)]
    container["lifecycle"] = {"preStop": {"exec": {"command": command}}}
    spec["terminationGracePeriodSeconds"] = _GRACE_SECONDS


def _environment(effective: Effective, role: Role, attempt: int) -> list[Manifest]:
    values = {
        "RLTRAIN_RUN": effective.name,
        "RLTRAIN_NAMESPACE": effective.namespace,
        "RLTRAIN_ATTEMPT": str(attempt),
        # Without the token no process of Ray answers: dashboard, jobs, clients, other nodes.
        "RAY_AUTH_MODE": "token",
    }
    if counts_no_devices(role):
        values |= NO_DEVICES
    ray_token = {"name": "RAY_AUTH_TOKEN", "valueFrom": _secret_key(effective, attempt, RAY_TOKEN_KEY)}
    if role.name != HEAD:
        return [*({"name": name, "value": value} for name, value in values.items()), ray_token]
    values |= {"RLTRAIN_STATUS_HOST": "0.0.0.0", "RLTRAIN_PLAIN": "1"}
    values[SPEC_HASH_VARIABLE] = effective.digest
    if effective.planned is not None and not effective.planned.attempt:
        values[PRIOR_VARIABLE] = "1"
    values[STATUS_TOKEN_FILE_VARIABLE] = f"{TOKEN_FOLDER}/{TOKEN_KEY}"
    values |= effective.backend.environment(
        sum(role.accelerators for role in effective.roles if role.name == LEARNER)
    )
    # No two heads have the same token: whoever holds an older one must not write any more. An attempt has several heads,
    # one after another, when its queue takes its quota back and gives it again.
    values["RLTRAIN_FENCE"] = f"{effective.uid}/{attempt}/$({_POD})"
    return [
        # The kubelet puts it into variables that come after it.
        {"name": _POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        *({"name": name, "value": value} for name, value in values.items()),
        ray_token,
    ]


def counts_no_devices(role: Role) -> bool:
    """Whether a pod of this role asks for no counted resource, whose device plug-in says which devices it gets. Those of a
    claim come by the container's device interface (CDI), and by no variable."""
    return not role.accelerators or role.pool.device_class is not None


def _secret_key(effective: Effective, attempt: int, key: str) -> Manifest:
    name = secret_name(effective.name, effective.uid, attempt)
    return {"secretKeyRef": {"name": name, "key": key}}


def _resources(role: Role) -> dict[str, Any]:
    """Memory and accelerators are limited to what is asked for; cores and disk can be shared, up to a limit."""
    fixed = {"memory": role.memory}
    if role.accelerators and role.pool.accelerator_resource is not None:
        fixed[role.pool.accelerator_resource] = str(
            role.accelerators
        )  # GPUs, MIG slices, other vendors' devices
    disk = min(_USUAL_DISK, role.ephemeral_storage, key=amount)
    return {
        "requests": {"cpu": role.cpu, "ephemeral-storage": disk, **fixed},
        "limits": {"cpu": role.cpu_limit, "ephemeral-storage": role.ephemeral_storage, **fixed},
    }
