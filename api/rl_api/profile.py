"""RLTrainingProfile: what a platform offers to runs. The object a platform engineer writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from rl_api.allow import AllowSpec, allow_problems
from rl_api.base import (
    MOST,
    MOST_ITEMS,
    Allowed,
    GraceDuration,
    Image,
    LabelValue,
    Model,
    ObjectName,
    PositiveDuration,
    Quantity,
    ResourceName,
    forget_server_fields,
)
from rl_api.egress import egress_problems
from rl_api.gang import GangSpec, gang_problems
from rl_api.paths import Path
from rl_api.placement import DeviceClassSpec, TopologyLevelSpec
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

    So are `storage` and `topology`, of which exactly one field is set: another place is not a second one.
    """
    merged = dict(base)
    for key, value in over.items():
        below = None if key in ("storage", "topology") else merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


class TolerationSpec(Model):
    """A taint that the pool's pods tolerate, as in Kubernetes."""

    key: ResourceName | None = None
    """Key of the taint; null: any, with operator Exists."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Exists ignores the value."""
    value: LabelValue | None = None
    """Value of the taint, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; null: all."""
    toleration_seconds: int | None = Field(default=None, ge=0, le=MOST)
    """Seconds to stay after NoExecute; null: for ever."""


class PoolLimitsSpec(Model):
    """Most that one run may take of a pool."""

    max_replicas: int | None = Field(default=None, ge=0, le=MOST)
    """Replicas of one role, of samplers of several pods each pod; null: no limit."""
    max_accelerators: int | None = Field(default=None, ge=0, le=MOST)
    """Accelerators; null: no limit."""


class PoolSpec(Model):
    """A group of like nodes."""

    name: ObjectName
    """Name, by which runs choose the pool."""
    node_selector: dict[ResourceName, LabelValue] = Field(default_factory=dict, max_length=MOST_ITEMS)
    """Labels of the pool's nodes."""
    tolerations: tuple[TolerationSpec, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Taints of the nodes."""
    accelerator_resource: ResourceName | None = None
    """Resource that counts accelerators, such as nvidia.com/gpu; null: a CPU pool, unless there is deviceClass."""
    device_class: DeviceClassSpec | None = None
    """Class of devices that pods claim, one for each accelerator, in place of acceleratorResource; null: none."""
    accelerators_per_node: int | None = Field(default=None, ge=1, le=1024)
    """Accelerators of one node; null: not known."""
    spot: bool = False
    """true: nodes may be taken away at any time."""
    runtime_class: ObjectName | None = None
    """RuntimeClass of the pods; null: the default."""
    ephemeral_storage: Quantity | None = None
    """Most that a pod keeps on its node's disk, where the run does not say; null: 20Gi, with accelerators 100Gi."""
    without_accelerators: bool = False
    """true: pods that ask for no accelerator may run on nodes that have some, such as heads where all nodes have."""
    topology: tuple[TopologyLevelSpec, ...] = Field(default=(), max_length=16, strict=False)
    """Levels of the nodes' topology that runs may name, the widest first."""
    limits: PoolLimitsSpec = PoolLimitsSpec()
    """Most that one run may take."""

    @property
    def accelerator(self) -> str | None:
        """What counts accelerators, for people; None: the pool has none."""
        claimed = f"devices of class {self.device_class.name}" if self.device_class is not None else None
        return self.accelerator_resource or claimed


class ImagesSpec(Model):
    """Trainer images for runs that name none."""

    cpu: Image | None = None
    """Image for pools without accelerators."""
    gpu: Image | None = None
    """Image for pools with accelerators."""


class NamespaceLimitsSpec(Model):
    """Most that all runs and services of a namespace have at once under this profile. One that would exceed it waits."""

    max_runs: int | None = Field(default=None, ge=1, le=MOST)
    """Runs with pods, services not counted; null: no limit."""
    max_samplers: int | None = Field(default=None, ge=1, le=MOST)
    """Samplers with pods of their own, of several pods each pod; null: no limit."""
    max_learners: int | None = Field(default=None, ge=1, le=MOST)
    """Learners, whose accelerators `maxAccelerators` bounds; null: no limit."""
    max_task_workers: int | None = Field(default=None, ge=0, le=MOST)
    """Simulators and workers of reward models; null: no limit."""
    max_accelerators: int | None = Field(default=None, ge=0, le=MOST)
    """Accelerators; null: no limit."""
    max_ephemeral_storage: Quantity | None = None
    """Disk space of nodes, of all pods together; null: no limit."""


class ProfileLimitsSpec(Model):
    """Most that one run may ask for, over all pools, and all runs and services of a namespace together."""

    max_samplers: int | None = Field(default=None, ge=1, le=MOST)
    """Samplers, of several pods each pod; null: no limit."""
    max_learners: int | None = Field(default=None, ge=1, le=MOST)
    """Learners, whose accelerators `maxAccelerators` bounds; null: no limit."""
    max_task_workers: int | None = Field(default=None, ge=0, le=MOST)
    """Simulators and workers of reward models (`task.simulators`, `task.rewardModel`) together; null: no limit."""
    max_accelerators: int | None = Field(default=None, ge=0, le=MOST)
    """Accelerators; null: no limit."""
    max_ephemeral_storage: Quantity | None = None
    """Disk space of its node that one pod may ask for; null: no limit."""
    max_duration: PositiveDuration | None = None
    """Time with pods, over all attempts: the most that stop.maxDuration may say, and what it is where a run says
    nothing; null: no limit."""
    max_preemption_grace_period: GraceDuration | None = None
    """Time for a last checkpoint: the most that scheduling.preemptionGracePeriod may say, and what it is at most where a run
    says nothing; null: no limit."""
    per_namespace: NamespaceLimitsSpec = NamespaceLimitsSpec()
    """Most that all runs and services of a namespace have at once."""


Contact = Annotated[
    str,
    Field(pattern=r"^[ -~]+$", min_length=1, max_length=253),
    Allowed("1 to 253 characters on one line"),
]
"""Whom to ask: a team, a channel, an address."""


class ProfileSpec(Model):
    """Pools, images, queue, defaults, limits, and what runs may ask for."""

    default: bool = False
    """true: used by runs that name no profile; at most one is."""
    pools: tuple[PoolSpec, ...] = Field(min_length=1, max_length=MOST_ITEMS, strict=False)
    """Node pools, the first of which is used by roles that name none."""
    images: ImagesSpec = ImagesSpec()
    """Images for runs that name none."""
    queue: ObjectName | None = None
    """Queue for runs that name none; null: none."""
    gang: GangSpec | None = None
    """Who places all pods with which an attempt begins together, or none; null: each is placed on its own."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Values of RLTrainingRun.spec for runs that do not set them."""
    limits: ProfileLimitsSpec = ProfileLimitsSpec()
    """Most that one run, and all runs and services of a namespace, may have."""
    allow: AllowSpec = AllowSpec()
    """What runs may ask for beyond their own pods."""
    contact: Contact = "the platform team"
    """Whom to ask for more: refusals name it."""


class ProfileMetadata(Model):
    """Name and labels of a cluster-scoped object."""

    name: ObjectName
    """Name, unique in the cluster."""
    labels: dict[ResourceName, LabelValue] = Field(default_factory=dict)
    """Kubernetes labels."""
    annotations: dict[ResourceName, str] = Field(default_factory=dict)
    """Kubernetes annotations."""

    _forget = model_validator(mode="before")(forget_server_fields)


class RLTrainingProfile(Model):
    """What a platform offers to runs. Cluster-scoped."""

    api_version: Literal["rltrain.dev/v1alpha1"] = "rltrain.dev/v1alpha1"
    """Version of the contract."""
    kind: Literal["RLTrainingProfile"] = "RLTrainingProfile"
    """Kind of the object."""
    metadata: ProfileMetadata
    """Name and labels."""
    spec: ProfileSpec
    """What is offered."""

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
    """`acceleratorsPerNode` is set only with `acceleratorResource` or `deviceClass`, and of these at most one is."""
    for index, pool in enumerate(spec.pools):
        path: Path = ("spec", "pools", index)
        if pool.accelerators_per_node is not None and pool.accelerator is None:
            yield Problem(
                (*path, "acceleratorResource"),
                "missing, required with acceleratorsPerNode: a resource such as nvidia.com/gpu, or a deviceClass",
                ((*path, "acceleratorsPerNode"),),
            )
        if pool.accelerator_resource is not None and pool.device_class is not None:
            yield Problem(
                (*path, "deviceClass"),
                f"found an object, allowed: null with acceleratorResource {pool.accelerator_resource}, as pods ask for "
                "accelerators in one way",
                ((*path, "acceleratorResource"),),
            )


def _one_label_for_each_level(spec: ProfileSpec) -> Iterator[Problem]:
    """Every level of a pool's topology has a name and a label of its own."""
    for index, pool in enumerate(spec.pools):
        path: Path = ("spec", "pools", index, "topology")
        names = [level.name for level in pool.topology]
        for position, name in enumerate(names):
            if (first := names.index(name)) < position:
                sentence = f"found {name!r}, which spec.pools[{index}].topology[{first}] has already"
                yield Problem((*path, position, "name"), sentence)
        if len({level.label for level in pool.topology}) < len(names):
            yield Problem(path, "found a label twice, allowed: each at most once")


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


def _labels_as_kubernetes_compares_them(spec: ProfileSpec) -> Iterator[Problem]:
    """Operators In and NotIn have values, the others have none."""
    yield from allow_problems(spec.allow, ("spec", "allow"))


def _egress_as_networks_take_it(spec: ProfileSpec) -> Iterator[Problem]:
    """A rule names addresses or pods, and never where nodes get their credentials."""
    yield from egress_problems(spec.allow.egress, ("spec", "allow", "egress"))
    for index, rule in enumerate(spec.allow.endpoints):
        yield from egress_problems(rule.egress, ("spec", "allow", "endpoints", index, "egress"))


def _gang_that_can_be(spec: ProfileSpec) -> Iterator[Problem]:
    """A gang has a queue where its scheduler has queues, and then none of Kueue's."""
    yield from gang_problems(spec.gang, spec.queue, ("spec",))


PROFILE_RULES = (
    _one_name_each,
    _accelerators_have_a_resource,
    _one_label_for_each_level,
    _tolerations_as_kubernetes_takes_them,
    _labels_as_kubernetes_compares_them,
    _egress_as_networks_take_it,
    _gang_that_can_be,
)
"""Rules across the fields of a profile."""


def check_profile_rules(spec: ProfileSpec) -> list[Problem]:
    """All rules across fields that `spec` breaks; an empty list when it keeps them."""
    return [problem for rule in PROFILE_RULES for problem in rule(spec)]
