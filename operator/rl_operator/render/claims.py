"""Devices that pods claim by class (Dynamic Resource Allocation), where their pools have a `deviceClass`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rl_operator.model.names import Manifest, digest_of
from rl_operator.plan.roles import Role

CLAIM: Final = "accelerators"
"""Name of a pod's claim, and of the one request in it."""


def claim_templates(
    owner: str, roles: Iterable[Role], metadata_of: Callable[[str], Manifest]
) -> list[Manifest]:
    """ResourceClaimTemplates of the roles of `owner`: from them Kubernetes makes a claim for each pod.

    Their spec is immutable, and pods that are made later in an attempt name the one of its beginning: where a profile has
    changed, there is another one beside it.
    """
    found = []
    for role in roles:
        if (name := claim_template_name(owner, role)) is not None:
            metadata = metadata_of(name)
            found.append(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaimTemplate",
                    "metadata": metadata,
                    "spec": {"spec": _claim(role)},
                }
            )
    return found


def claim_template_name(owner: str, role: Role) -> str | None:
    """Name of the template of a role's claims, which stands for what is in it; None: it claims nothing."""
    if not role.accelerators or role.pool.device_class is None:
        return None
    return f"{owner}-{role.name}-{digest_of(_claim(role))[:8]}"


def add_claim(owner: str, role: Role, spec: Manifest, container: Manifest) -> None:
    """The claim of a pod of this role, whose devices are in this container."""
    if (name := claim_template_name(owner, role)) is not None:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": name}]
        container["resources"]["claims"] = [{"name": CLAIM}]


def _claim(role: Role) -> Manifest:
    """Spec of the claim of one pod: as many devices as the pod has accelerators, all of them of one node."""
    device_class = role.pool.device_class
    assert device_class is not None
    asked: Manifest = {
        "deviceClassName": device_class.name,
        "allocationMode": "ExactCount",
        "count": role.accelerators,
    }
    if device_class.selectors:
        asked["selectors"] = [{"cel": {"expression": text}} for text in device_class.selectors]
    return {"devices": {"requests": [{"name": CLAIM, "exactly": asked}]}}
