"""RLTrainingProfile: what a platform offers to runs. The object a platform engineer writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from rl_api.base import (
    LabelValue,
    Model,
    ObjectName,
    ResourceName,
    Text,
    forget_server_fields,
)
from rl_api.paths import Path
from rl_api.problems import Problem

PROFILE_GROUPS: Final = (
    "image",
    "sampler",
    "learner",
    "placement",
    "weightSync",
    "checkpoint",
    "scheduling",
    "retry",
    "cleanup",
    "server",
)
"""Groups of a run's spec that a profile can give defaults for. `sampler.replicas` is always the run's."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: objects are merged field by field, anything else is replaced as a whole.

    So is `storage`, of which exactly one field is set: another place is not a second one.
    """
    merged = dict(base)
    for key, value in over.items():
        below = None if key == "storage" else merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


class TolerationSpec(Model):
    """A taint that the pool's pods tolerate, as in Kubernetes."""

    key: ResourceName | None = Field(
        default=None, description="Key of the taint; null: any, with operator Exists."
    )
    operator: Literal["Equal", "Exists"] = Field(default="Equal", description="Exists ignores the value.")
    value: LabelValue | None = Field(default=None, description="Value of the taint, with operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; null: all."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, description="Seconds to stay after NoExecute; null: for ever."
    )


class PoolLimitsSpec(Model):
    """Most that one run may take of a pool."""

    max_replicas: int | None = Field(default=None, ge=0, description="Replicas of one role; null: no limit.")
    max_accelerators: int | None = Field(default=None, ge=0, description="Accelerators; null: no limit.")


class PoolSpec(Model):
    """A group of like nodes."""

    name: ObjectName = Field(description="Name, by which runs choose the pool.")
    node_selector: dict[ResourceName, LabelValue] = Field(
        default_factory=dict, description="Labels of the pool's nodes."
    )
    tolerations: tuple[TolerationSpec, ...] = Field(
        default=(), strict=False, description="Taints of the nodes."
    )
    accelerator_resource: ResourceName | None = Field(
        default=None,
        description="Resource that counts accelerators, such as nvidia.com/gpu; null: a CPU pool.",
    )
    accelerators_per_node: int | None = Field(
        default=None, ge=1, description="Accelerators of one node; null: not known."
    )
    spot: bool = Field(default=False, description="true: nodes may be taken away at any time.")
    runtime_class: ObjectName | None = Field(
        default=None, description="RuntimeClass of the pods; null: the default."
    )
    limits: PoolLimitsSpec = Field(default_factory=PoolLimitsSpec, description="Most that one run may take.")


class ImagesSpec(Model):
    """Trainer images for runs that name none."""

    cpu: Text | None = Field(default=None, description="Image for pools without accelerators.")
    gpu: Text | None = Field(default=None, description="Image for pools with accelerators.")


class ProfileLimitsSpec(Model):
    """Most that one run may ask for, over all pools."""

    max_samplers: int | None = Field(default=None, ge=1, description="Samplers; null: no limit.")
    max_learners: int | None = Field(default=None, ge=1, description="Learners; null: no limit.")
    max_accelerators: int | None = Field(default=None, ge=0, description="Accelerators; null: no limit.")


class ProfileSpec(Model):
    """Pools, images, queue, defaults and limits."""

    default: bool = Field(
        default=False, description="true: used by runs that name no profile; at most one is."
    )
    pools: tuple[PoolSpec, ...] = Field(
        min_length=1,
        strict=False,
        description="Node pools, the first of which is used by roles that name none.",
    )
    images: ImagesSpec = Field(default_factory=ImagesSpec, description="Images for runs that name none.")
    queue: ObjectName | None = Field(default=None, description="Queue for runs that name none; null: none.")
    defaults: dict[str, Any] = Field(
        default_factory=dict, description="Values of RLTrainingRun.spec for runs that do not set them."
    )
    limits: ProfileLimitsSpec = Field(
        default_factory=ProfileLimitsSpec, description="Most that one run may ask for."
    )


class ProfileMetadata(Model):
    """Name and labels of a cluster-scoped object."""

    name: ObjectName = Field(description="Name, unique in the cluster.")
    labels: dict[ResourceName, LabelValue] = Field(default_factory=dict, description="Kubernetes labels.")
    annotations: dict[ResourceName, str] = Field(default_factory=dict, description="Kubernetes annotations.")

    _forget = model_validator(mode="before")(forget_server_fields)


class RLTrainingProfile(Model):
    """What a platform offers to runs. Cluster-scoped."""

    api_version: Literal["rltrain.dev/v1alpha1"] = Field(
        default="rltrain.dev/v1alpha1", description="Version of the contract."
    )
    kind: Literal["RLTrainingProfile"] = Field(default="RLTrainingProfile", description="Kind of the object.")
    metadata: ProfileMetadata = Field(description="Name and labels.")
    spec: ProfileSpec = Field(description="What is offered.")

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.metadata.name


def _one_name_each(spec: ProfileSpec) -> Iterator[Problem]:
    """Every pool has a name of its own."""
    first: dict[str, int] = {}
    for index, pool in enumerate(spec.pools):
        path: Path = ("spec", "pools", index, "name")
        if pool.name in first:
            yield Problem(path, f"found {pool.name!r}, which spec.pools[{first[pool.name]}] has already")
        first.setdefault(pool.name, index)


def _accelerators_have_a_resource(spec: ProfileSpec) -> Iterator[Problem]:
    """`acceleratorsPerNode` is set only with `acceleratorResource`."""
    for index, pool in enumerate(spec.pools):
        if pool.accelerators_per_node is not None and pool.accelerator_resource is None:
            yield Problem(
                ("spec", "pools", index, "acceleratorResource"),
                "missing, required with acceleratorsPerNode: a resource such as nvidia.com/gpu",
                (("spec", "pools", index, "acceleratorsPerNode"),),
            )


def _tolerations_as_kubernetes_takes_them(spec: ProfileSpec) -> Iterator[Problem]:
    """A toleration without key has operator Exists, and one with operator Exists has no value."""
    for index, pool in enumerate(spec.pools):
        for position, toleration in enumerate(pool.tolerations):
            path: Path = ("spec", "pools", index, "tolerations", position)
            if toleration.key is None and toleration.operator != "Exists":
                yield Problem(
                    (*path, "key"), "missing, required with operator Equal: the key of a taint", (path,)
                )
            if toleration.operator == "Exists" and toleration.value is not None:
                yield Problem(
                    (*path, "value"),
                    f"found {toleration.value!r}, allowed: null with operator Exists",
                    (path,),
                )


PROFILE_RULES = (_one_name_each, _accelerators_have_a_resource, _tolerations_as_kubernetes_takes_them)
"""Rules across the fields of a profile."""


def check_profile_rules(spec: ProfileSpec) -> list[Problem]:
    """All rules across fields that `spec` breaks; an empty list when it keeps them."""
    return [problem for rule in PROFILE_RULES for problem in rule(spec)]
