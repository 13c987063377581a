"""What is seen of Kueue: Workloads, and what they were admitted with. Plain values, and the way to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rl_operator.model.names import HASH_ANNOTATION, PODS_ANNOTATION, SAMPLERS_LABEL, Manifest
from rl_operator.model.times import parse_time
from rl_operator.model.writers import writers

BOOST_ANNOTATION: Final = "kueue.x-k8s.io/priority-boost"
"""What is added to the priority of a Workload, where Kueue's gate PriorityBoost is on."""

PREEMPTOR: Final = re.compile(r"\(UID: (?P<uid>[^,]+), JobUID: [^)]*\) due to (?P<why>[^;]+)")
"""In Kueue's message about an eviction: uid of the Workload that it was for, and why (kueue: preemptionMessage)."""

_LONGEST: Final = 1024
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


@dataclass(frozen=True)
class Fact:
    """A condition of a Workload that holds."""

    reason: str
    message: str = ""
    time: datetime | None = None


@dataclass(frozen=True)
class Placed:
    """What pods of a role get where a queue has put them: of the flavors, and of admission checks."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    workload: str = ""
    """The Workload by which Kueue finds the pods that it places by topology; empty: it places none."""


NOWHERE: Final = Placed()
"""Where no queue has put pods."""


@dataclass(frozen=True)
class Assignment:
    """What a queue has given to one role."""

    count: int
    flavors: tuple[str, ...] = ()
    """Names of the flavors, each once."""
    by_topology: bool = False
    """Whether Kueue itself says on which nodes the pods go."""
    update: Placed = NOWHERE
    """What admission checks add to its pods."""


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor: nodes that are alike."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Workload:
    """What Kueue queues: a run, or samplers above the fewest of a run, or something of somebody else."""

    name: str
    uid: str = ""
    queue: str = ""
    slice: int | None = None
    """Which of the parts of a run's samplers above the fewest; None: the run without them."""
    created: datetime | None = None
    deleting: bool = False
    hash: str = ""
    """Of what was rendered."""
    pods: str = ""
    """Hash of the pods that were rendered, and of their queue."""
    priority_class: str = ""
    """Kueue's class that says the priority; empty: none of Kueue's does."""
    priority: int = 0
    boost: int | None = None
    boost_writers: Mapping[str, datetime | None] = field(default_factory=dict)
    """Who wrote the boost, each with the time of the last write."""
    count: int = 0
    """Pods that it asks for."""
    active: bool = True
    reserved: bool = False
    """Whether quota is held for it."""
    admitted: bool = False
    ready: bool = False
    """Whether Kueue was told that its pods are ready."""
    evicted: Fact | None = None
    finished: Fact | None = None
    waits: Fact | None = None
    """Why it has no quota, as Kueue says it."""
    since: datetime | None = None
    """When it got its quota, or lost it."""
    checks: str = ""
    """What admission checks say that it waits for."""
    assigned: Mapping[str, Assignment] = field(default_factory=dict)
    """By role."""

    @property
    def taken(self) -> bool:
        """Whether Kueue wants its quota back."""
        return self.evicted is not None and self.reserved

    @property
    def pending(self) -> bool:
        """Whether it stands in its queue."""
        return self.active and not self.reserved and self.finished is None and not self.deleting

    @property
    def runs(self) -> bool:
        """Whether its pods may run."""
        return self.admitted and self.evicted is None and self.finished is None and not self.deleting

    @property
    def flavors(self) -> list[str]:
        """Flavors that it was given, each once."""
        return sorted({name for one in self.assigned.values() for name in one.flavors})


@dataclass(frozen=True)
class Boosts:
    """What is known of boosts in this cluster."""

    gate: bool | None = None
    """Whether Kueue minds them; None: not known."""
    levels: tuple[int, ...] = ()
    """Priorities of all classes; of what may be taken up to a priority to borrow, the one above it."""
    manager: str = ""
    """Name under which we write them."""


NO_BOOSTS: Final = Boosts()


@dataclass(frozen=True)
class Line:
    """Those that wait in a queue of a namespace."""

    position: int
    """Of this one, from 1."""
    waiting: int
    said: str = ""
    """What Kueue says of the first of those that ask for the very same, which it does not say of each; empty: nothing."""


def line_of(name: str, waiting: Iterable[Workload]) -> Line | None:
    """Place of the Workload of this name among those that wait, in Kueue's order; None: it does not wait.

    Kueue takes the highest priority first, boost included, then the oldest. Where one does not fit, others of the same pods
    and priority are not tried, and nothing is said of them (kueue: pkg/cache/queue/cluster_queue.go).
    """
    latest = datetime.max.replace(tzinfo=UTC)
    found = sorted(waiting, key=lambda one: (-_rank(one), one.created or latest, one.name))
    position = next((number for number, one in enumerate(found, 1) if one.name == name), None)
    if position is None:
        return None
    this = found[position - 1]
    alike = [one for one in found if this.pods and (one.pods, _rank(one)) == (this.pods, _rank(this))]
    return Line(position, len(found), next((said for one in alike if (said := _said(one))), ""))


def _said(workload: Workload) -> str:
    """What Kueue says of one that waits, but for why it was evicted, which is of it alone."""
    evicted = workload.evicted.message if workload.evicted is not None else ""
    return workload.waits.message if workload.waits is not None and workload.waits.message != evicted else ""


def _rank(workload: Workload) -> int:
    return workload.priority + (workload.boost or 0)


def parse_workload(document: Mapping[str, Any]) -> Workload:
    """The view of a Workload."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    facts = {str(one.get("type")): one for one in status.get("conditions") or ()}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    quota = facts.get("QuotaReserved") or {}
    checks = [one for one in status.get("admissionChecks") or () if isinstance(one, Mapping)]
    sets = [one for one in spec.get("podSets") or () if isinstance(one, Mapping)]
    reference = spec.get("priorityClassRef") or {}
    index = str(labels.get(SAMPLERS_LABEL, ""))
    return Workload(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        queue=str(spec.get("queueName") or ""),
        slice=int(index) if index.isascii() and index.isdigit() and len(index) < 6 else None,
        created=parse_time(metadata.get("creationTimestamp")),
        deleting=metadata.get("deletionTimestamp") is not None,
        hash=str(annotations.get(HASH_ANNOTATION, "")),
        pods=str(annotations.get(PODS_ANNOTATION, "")),
        priority_class=str(reference.get("name") or "")
        if reference.get("kind") == "WorkloadPriorityClass"
        else "",
        priority=_whole(spec.get("priority")),
        boost=_boost(annotations.get(BOOST_ANNOTATION)),
        boost_writers=writers(metadata, BOOST_ANNOTATION),
        count=sum(_whole(one.get("count")) for one in sets),
        active=spec.get("active") is not False,
        reserved=quota.get("status") == "True",
        admitted=(facts.get("Admitted") or {}).get("status") == "True",
        ready=(facts.get("PodsReady") or {}).get("status") == "True",
        evicted=_fact(facts.get("Evicted"), "True"),
        finished=_fact(facts.get("Finished"), "True"),
        waits=_fact(facts.get("QuotaReserved"), "False"),
        since=parse_time(quota.get("lastTransitionTime")),
        checks="; ".join(
            f"{one.get('name')}: {one.get('message') or one.get('state')}"
            for one in checks
            if one.get("state") != "Ready"
        )[:_LONGEST],
        assigned=_assigned((status.get("admission") or {}).get("podSetAssignments") or (), checks),
    )


def parse_flavor(document: Mapping[str, Any]) -> Flavor:
    """The view of a ResourceFlavor."""
    spec = document.get("spec") or {}
    return Flavor(
        str(document["metadata"]["name"]),
        {str(key): str(value) for key, value in (spec.get("nodeLabels") or {}).items()},
        tuple(one for one in spec.get("tolerations") or () if isinstance(one, Mapping)),
    )


def placed(assignment: Assignment, flavors: Mapping[str, Flavor], workload: str) -> Placed:
    """What the pods of a role get with this assignment; flavors that are not known give nothing."""
    found = [flavors[name] for name in assignment.flavors if name in flavors]
    labels: dict[str, str] = {}
    for one in found:
        labels |= one.labels
    return Placed(
        node_selector={**labels, **assignment.update.node_selector},
        tolerations=(
            *(toleration for one in found for toleration in one.tolerations),
            *assignment.update.tolerations,
        ),
        labels=assignment.update.labels,
        annotations=assignment.update.annotations,
        workload=workload if assignment.by_topology else "",
    )


def _assigned(
    assignments: Iterable[Mapping[str, Any]], checks: Iterable[Mapping[str, Any]]
) -> dict[str, Assignment]:
    updates: dict[str, Placed] = {}
    for check in checks:
        for one in check.get("podSetUpdates") or ():
            name, before = str(one.get("name")), updates.get(str(one.get("name")), NOWHERE)
            updates[name] = Placed(
                node_selector={**before.node_selector, **(one.get("nodeSelector") or {})},
                tolerations=(*before.tolerations, *(one.get("tolerations") or ())),
                labels={**before.labels, **(one.get("labels") or {})},
                annotations={**before.annotations, **(one.get("annotations") or {})},
            )
    return {
        str(one.get("name")): Assignment(
            count=_whole(one.get("count")),
            flavors=tuple(sorted(set((one.get("flavors") or {}).values()))),
            by_topology=bool(one.get("topologyAssignment") or one.get("delayedTopologyRequest")),
            update=updates.get(str(one.get("name")), NOWHERE),
        )
        for one in assignments
    }


def _fact(condition: Manifest | None, status: str) -> Fact | None:
    if condition is None or condition.get("status") != status:
        return None
    return Fact(
        str(condition.get("reason") or ""),
        str(condition.get("message") or "")[:_LONGEST],
        parse_time(condition.get("lastTransitionTime")),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _boost(value: object) -> int | None:
    """A boost that Kueue would take; None: there is none."""
    text = str(value)
    return int(text) if _NUMBER.fullmatch(text) and abs(int(text)) < 2**31 else None
