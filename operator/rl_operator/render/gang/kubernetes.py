"""Kubernetes' own gangs, from 1.36 on: a PodGroup, of which pods are members by `spec.schedulingGroup`.

KubeRay 1.6 does not know that field, and its definitions drop it. So the template says it in a label, which the chart's
MutatingAdmissionPolicy turns into the field as pods are made. A scheduling gate, which the policy takes away in the same
breath, keeps pods from being placed one by one where there is no policy.
"""

from __future__ import annotations

from rl_operator.model.gangs import GATE, POD_GROUP_LABEL, version_of_kind
from rl_operator.render.gang.parts import Gang, Placement, PodParts


def kubernetes(gang: Gang, kind: str) -> Placement:
    """The PodGroup in the version of `kind`. It needs no Workload, which is a template for several of them."""
    group, version = version_of_kind(kind)
    pod = PodParts({POD_GROUP_LABEL: gang.name}, {}, {"schedulingGates": [{"name": GATE}]})
    return Placement(
        pods={member.group: pod for member in gang.members},
        pod_group={
            "apiVersion": f"{group}/{version}",
            "kind": "PodGroup",
            "metadata": gang.metadata,
            "spec": {"schedulingPolicy": {"gang": {"minCount": gang.size}}},
        },
    )
