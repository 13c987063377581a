"""How the pods of a role lie to each other: said to Kubernetes' scheduler, or, of a run with a queue, to Kueue.

Without a queue the scheduler places pod after pod: with `required` the first one takes a domain, and the others follow as
long as there is room. Kueue (topology-aware scheduling, TAS) looks for a domain that has room for all before any is made:
for all pods of a role but samplers of whom some come later, which the scheduler places in any case.
"""

from __future__ import annotations

from typing import Final

from rl_operator.model.names import ATTEMPT_LABEL, ROLE_LABEL, RUN_LABEL, Manifest
from rl_operator.plan.roles import Role

GATE: Final = "kueue.x-k8s.io/topology"
"""Scheduling gate of pods that Kueue gives their place."""

WORKLOAD_ANNOTATION: Final = "kueue.x-k8s.io/workload"
POD_SET_LABEL: Final = "kueue.x-k8s.io/podset"
_REQUEST: Final = "kueue.x-k8s.io/podset-{}-topology"
"""Annotation of pods: required and preferred name a label of nodes, unconstrained is "true"."""

_OURS: Final = (RUN_LABEL, ATTEMPT_LABEL, ROLE_LABEL)


def pod_set_topology(role: Role) -> Manifest:
    """`topologyRequest` of a role's pod set in a Kueue Workload (v1beta2); empty: none.

    Kueue knows nothing of spreading. Where all flavors of a queue have a topology it places pods of no request as well, as
    it likes; where only some have one, it admits none to these.
    """
    topology = role.topology
    if topology is None or topology.how == "spread" or not _by_kueue(role):
        return {}
    return {topology.how: topology.label}


def _by_kueue(role: Role) -> bool:
    """Whether Kueue can place this role's pods: it has places for as many as one pod set has. Samplers above the fewest are
    in pod sets of their own, and all are made of one template, so that nobody could take the gate of some of them away."""
    return role.at_start == role.replicas


def _wait_for_kueue(role: Role, metadata: Manifest, spec: Manifest) -> None:
    """A pod waits until Kueue's topology ungater says where it goes.

    For pods of an assignment with a `topologyAssignment`, and for no other: nobody would take the gate away. Kueue looks for
    pods by the annotation with the Workload's name, and among these by the label with the pod set's; it considers those
    alone that have an annotation of a request, whichever it is. It takes the gate of each and adds the domain's labels to
    its node selector, and does so for pods that are made later as well, within the pod set's count (kueue:
    pkg/controller/tas/topology_ungater.go).
    """
    request = _request(role) or {_REQUEST.format("unconstrained"): "true"}
    named = {WORKLOAD_ANNOTATION: role.placed.workload}
    metadata["labels"] = {**metadata["labels"], POD_SET_LABEL: role.name}
    metadata["annotations"] = {**metadata.get("annotations", {}), **named, **request}
    spec["schedulingGates"] = [{"name": GATE}]


def add_topology(role: Role, queued: bool, metadata: Manifest, spec: Manifest) -> None:
    """To a pod of a role what brings it where the others are, or where they are not. `queued`: a queue admits the run, and
    Kueue chooses the domain; it finds the request of a RayJob with a queue's label in its pods' annotations."""
    if role.placed.workload and _by_kueue(role):
        _wait_for_kueue(role, metadata, spec)
    topology = role.topology
    if topology is None:
        return
    selector = {"matchLabels": {key: metadata["labels"][key] for key in _OURS}}
    if topology.how == "spread":
        # Where a domain is full, the others take more: a sampler in the wrong zone is better than none.
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": topology.label,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": selector,
            }
        ]
    elif queued and _by_kueue(role):
        metadata["annotations"] = {**metadata.get("annotations", {}), **_request(role)}
    else:
        term = {"labelSelector": selector, "topologyKey": topology.label}
        affinity = (
            {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            if topology.how == "required"
            else {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
            }
        )
        spec["affinity"] = {**spec.get("affinity", {}), "podAffinity": affinity}


def _request(role: Role) -> dict[str, str]:
    """Annotation of a pod with the role's topology request."""
    return {_REQUEST.format(how): label for how, label in pod_set_topology(role).items()}
