"""A test plays Kueue where only its definitions are: it admits and evicts, and an admission policy minds boosts."""

from __future__ import annotations

import json
from typing import Any, Final

from kube import REPOSITORY, KubeApi
from kueue_queues import condition

from rl_operator.model.workload import BOOST_ANNOTATION

VERSION: Final = "kueue.x-k8s.io/v1beta2"
DEFINITIONS: Final = REPOSITORY / ".tools/share/kueue-crds"
_PLURALS: Final = ("workloads", "resourceflavors", "workloadpriorityclasses", "clusterqueues")
_NAME: Final = "kueue-boosts"
_REFUSED: Final = f"metadata.annotations[{BOOST_ANNOTATION}]: must be a number"


def install(kube: KubeApi) -> None:
    """Kueue's definitions, as far as the operator asks for them."""
    kube.install_definitions(*(DEFINITIONS / f"kueue.x-k8s.io_{plural}.yaml" for plural in _PLURALS))


def mind_boosts(kube: KubeApi) -> None:
    """Refuse boosts that are no number, as Kueue's webhook does with its feature gate PriorityBoost."""
    policy = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": _NAME}}
    rule = {
        "apiGroups": ["kueue.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["workloads"],
    }
    boost = f"object.metadata.?annotations[?'{BOOST_ANNOTATION}']"
    expression = f"{boost}.orValue('0').matches('^-?[0-9]+$')"
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": _REFUSED}],
    }
    binding = {"policyName": _NAME, "validationActions": ["Deny"]}
    kube.apply(
        policy | {"kind": "ValidatingAdmissionPolicy", "spec": spec},
        policy | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    )


def boosts_are_minded(kube: KubeApi, namespace: str) -> bool:
    """Whether the policy is in force already."""
    container = {"name": "main", "image": "none"}
    pod = {"containers": [container], "restartPolicy": "Never"}
    probe = {
        "apiVersion": VERSION,
        "kind": "Workload",
        "metadata": {"name": "probe", "annotations": {BOOST_ANNOTATION: "none"}},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": pod}}]},
    }
    create = ("create", "--dry-run=server", "-n", namespace, "-f", "-")
    return _REFUSED in kube.kubectl(*create, stdin=json.dumps(probe), check=False).stderr


def admit(kube: KubeApi, namespace: str, name: str, flavor: str) -> None:
    """Give a Workload all that it asks for, on one flavor."""
    sets = kube.get("workload", name, "-n", namespace)["spec"]["podSets"]
    assigned = [{"name": one["name"], "count": one["count"], "flavors": {"cpu": flavor}} for one in sets]
    admission = {"clusterQueue": "team", "podSetAssignments": assigned}
    facts = [condition(kind, "True", "Admitted") for kind in ("QuotaReserved", "Admitted")]
    _tell(kube, namespace, name, {"admission": admission, "conditions": facts})


def evict(kube: KubeApi, namespace: str, name: str) -> None:
    """Ask for the quota back, as for a Workload that goes first."""
    facts = kube.get("workload", name, "-n", namespace)["status"]["conditions"]
    facts.append(condition("Evicted", "True", "Preempted", "preempted for another"))
    _tell(kube, namespace, name, {"conditions": facts})


def _tell(kube: KubeApi, namespace: str, name: str, status: dict[str, Any]) -> None:
    where = ("-n", namespace, "--subresource=status", "--type=merge")
    kube.kubectl("patch", "workload", name, *where, "-p", json.dumps({"status": status}))
