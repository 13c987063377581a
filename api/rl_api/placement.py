"""Where within a cluster pods go: levels of its topology, and devices that are claimed by class."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rl_api.base import NO_NUL, Allowed, Model, ObjectName

TopologyLabel = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        max_length=63,
    ),
    Allowed("a label of nodes such as topology.kubernetes.io/zone, at most 63 characters"),
]
"""Key of a label of nodes. Kueue takes no longer one for a level."""

DeviceClassName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        max_length=253,
    ),
    Allowed("the name of a DeviceClass such as gpu.nvidia.com"),
]
"""Name of a DeviceClass: a DNS-1123 subdomain."""

DeviceSelector = Annotated[
    str,
    Field(min_length=1, max_length=10_240, pattern=NO_NUL),
    Allowed("a CEL expression over device, of 1 to 10240 characters"),
]
"""Which devices of a class are taken, as Kubernetes writes it."""


class TopologyLevelSpec(Model):
    """A level of the nodes' topology: nodes with the same value of a label are in one domain of it."""

    name: ObjectName
    """Name, by which runs ask for the level, such as rack."""
    label: TopologyLabel
    """Label of the nodes whose value tells the level's domains apart, such as topology.kubernetes.io/zone."""


class DeviceClassSpec(Model):
    """Accelerators that pods claim, by Dynamic Resource Allocation (DRA)."""

    name: DeviceClassName
    """DeviceClass of the cluster, such as gpu.nvidia.com, or mig.nvidia.com for parts of GPUs."""
    selectors: tuple[DeviceSelector, ...] = Field(default=(), max_length=32, strict=False)
    """CEL expressions over `device`, all of which hold for the devices that are taken; empty: any device of the class."""


class TopologySpec(Model):
    """How the pods of a role lie to each other: exactly one of these, which names a level of its pools' topology."""

    required: ObjectName | None = None
    """All in one domain of this level, such as one rack; where none has room for all, they wait."""
    preferred: ObjectName | None = None
    """In one domain of this level where there is room, else in few."""
    spread: ObjectName | None = None
    """Over the domains of this level, such as zones, as evenly as there is room."""
