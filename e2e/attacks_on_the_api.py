"""What red's user asks the API server for: other teams' objects, more rights, and statuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from conftest import SYSTEM
from tenants import Attack, Tenants
from training_run import run_document

FORBIDDEN = r"\(Forbidden\)|is forbidden|^exit code 1: no\b"
RESTRICTED = 'violates PodSecurity "restricted'
_RBAC = "rbac.authorization.k8s.io"


def kubectl(*words: str) -> Callable[[Tenants], str]:
    """Red's user says this. BLUE, VICTIM and HEAD stand for blue's namespace, its run and the head of that."""

    def attempt(tenants: Tenants) -> str:
        names = {"BLUE": tenants.blue.namespace, "VICTIM": tenants.victim.name, "RED": tenants.red.namespace}
        return tenants.as_red(*(names.get(each, each) for each in words), "--request-timeout=20s")

    return attempt


def at_the_head(*words: str) -> Callable[[Tenants], str]:
    """Red's user says this about the head of blue's run."""

    def attempt(tenants: Tenants) -> str:
        name = tenants.head(tenants.victim)[0]
        return tenants.as_red(
            "-n", tenants.blue.namespace, *(name if each == "HEAD" else each for each in words)
        )

    return attempt


def creates(kind: str, version: str = "v1", **parts: Any) -> Callable[[Tenants], str]:
    """Red's user creates an object named `mine`."""
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": "mine"}, **parts}
    return lambda tenants: tenants.as_red("create", "-f", "-", stdin=json.dumps(document))


def pod(container: dict[str, Any] | None = None, **spec: Any) -> Callable[[Tenants], str]:
    """Red's user creates a pod with that in it."""
    return creates("Pod", spec={"containers": [{"name": "c", "image": "none", **(container or {})}], **spec})


STATUS = {"conditions": [{"type": "Succeeded", "status": "True"}], "phase": "Succeeded"}
RIGHTS = [
    Attack("reads another's runs", kubectl("get", "rltrainingruns", "-n", "BLUE"), FORBIDDEN),
    Attack("reads everybody's runs", kubectl("get", "rltrainingruns", "-A"), FORBIDDEN),
    Attack("reads another's secrets", kubectl("get", "secrets", "-n", "BLUE"), FORBIDDEN),
    Attack("reads another's pods", kubectl("get", "pods", "-n", "BLUE"), FORBIDDEN),
    Attack("reads another's log", at_the_head("logs", "HEAD"), FORBIDDEN),
    Attack("runs a command in another's head", at_the_head("exec", "HEAD", "--", "id"), FORBIDDEN),
    Attack(
        "calls another's dashboard through the API server",
        lambda tenants: tenants.as_red(
            "get",
            "--raw",
            f"/api/v1/namespaces/{tenants.blue.namespace}/pods/{tenants.head(tenants.victim)[0]}:8265/proxy/",
        ),
        FORBIDDEN,
    ),
    Attack("deletes another's run", kubectl("delete", "rltrainingrun", "VICTIM", "-n", "BLUE"), FORBIDDEN),
    Attack(
        "changes another's run",
        kubectl(
            "patch",
            "rltrainingrun",
            "VICTIM",
            "-n",
            "BLUE",
            "--type=merge",
            "-p",
            '{"spec": {"suspend": true}}',
        ),
        FORBIDDEN,
    ),
    Attack(
        "scales another's run",
        kubectl("scale", "rltrainingrun/VICTIM", "-n", "BLUE", "--replicas=9"),
        FORBIDDEN,
    ),
    Attack(
        "opens another's network policy",
        kubectl("delete", "networkpolicy", "VICTIM", "-n", "BLUE"),
        FORBIDDEN,
    ),
    Attack("reads the operator's secrets", kubectl("get", "secrets", "-n", SYSTEM), FORBIDDEN),
    Attack("takes the operator's token", kubectl("create", "token", "rltrain", "-n", SYSTEM), FORBIDDEN),
    Attack(
        "is the operator",
        kubectl("get", "secrets", "-A", f"--as=system:serviceaccount:{SYSTEM}:rltrain"),
        FORBIDDEN,
    ),
    Attack("takes the operator's lease", kubectl("delete", "leases", "--all", "-n", SYSTEM), FORBIDDEN),
    Attack("stops the operator", kubectl("delete", "pods", "--all", "-n", SYSTEM), FORBIDDEN),
    Attack(
        "writes a profile",
        creates("RLTrainingProfile", "rltrain.dev/v1alpha1", spec={"pools": [{"name": "all"}]}),
        FORBIDDEN,
    ),
    Attack(
        "changes a profile",
        kubectl(
            "patch",
            "rltrainingprofile",
            "e2e",
            "--type=merge",
            "-p",
            '{"spec": {"limits": {"maxSamplers": null}}}',
        ),
        FORBIDDEN,
    ),
    Attack(
        "deletes the definition of runs", kubectl("delete", "crd", "rltrainingruns.rltrain.dev"), FORBIDDEN
    ),
    Attack(
        "switches admission off",
        kubectl("delete", "validatingadmissionpolicies,validatingwebhookconfigurations", "--all"),
        FORBIDDEN,
    ),
    Attack(
        "binds a role to itself",
        creates(
            "ClusterRoleBinding",
            f"{_RBAC}/v1",
            roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
            subjects=[{"apiGroup": _RBAC, "kind": "Group", "name": "system:authenticated"}],
        ),
        FORBIDDEN,
    ),
    Attack(
        "binds the operator's role to itself",
        creates(
            "RoleBinding",
            f"{_RBAC}/v1",
            roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": "rltrain"},
            subjects=[{"kind": "ServiceAccount", "name": "default"}],
        ),
        FORBIDDEN,
    ),
    Attack("makes a RayJob under an attempt's name", creates("RayJob", "ray.io/v1", spec={}), FORBIDDEN),
    Attack("makes a priority class", creates("PriorityClass", "scheduling.k8s.io/v1", value=1000), FORBIDDEN),
    Attack(
        "names its namespace the operator's",
        kubectl("label", "namespace", "RED", f"kubernetes.io/metadata.name={SYSTEM}", "--overwrite"),
        FORBIDDEN,
    ),
    Attack(
        "lifts its namespace's pod security",
        kubectl("label", "namespace", "RED", "pod-security.kubernetes.io/enforce=privileged", "--overwrite"),
        FORBIDDEN,
    ),
    Attack("goes around policies on the node's network", pod(hostNetwork=True), RESTRICTED),
    Attack("mounts the node's disk", pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), RESTRICTED),
    Attack("is root on the node", pod({"securityContext": {"privileged": True}}), RESTRICTED),
]


def status_in_the_body(tenants: Tenants) -> str:
    """A run that says of itself that it has succeeded, as the user creates it."""
    document = run_document("finished", tenants.red.namespace, {"profile": "e2e", "suspend": True})
    tenants.as_red("create", "-f", "-", stdin=json.dumps(document | {"status": STATUS}))
    found = tenants.cluster.get("rltrainingrun", "finished", tenants.red.namespace) or {}
    tenants.as_red("delete", "rltrainingrun", "finished", "--wait=false")
    conditions = (found.get("status") or {}).get("conditions", [])
    return (
        f"succeeded: {any(each['type'] == 'Succeeded' and each['status'] == 'True' for each in conditions)}"
    )


_PATCH_STATUS = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": STATUS}))
STATUSES = [
    Attack(
        "writes another's status",
        kubectl("patch", "rltrainingrun", "VICTIM", "-n", "BLUE", *_PATCH_STATUS),
        FORBIDDEN,
    ),
    Attack(
        "writes its own run's status", kubectl("patch", "rltrainingrun", "honest", *_PATCH_STATUS), FORBIDDEN
    ),
    Attack("creates a run that has succeeded", status_in_the_body, "succeeded: False"),
]
