"""A run that its queue admits by a Workload of ours: asking for it, waiting, and what is said of it. Pure.

The Workload is the run's: it is there from the first wish for pods to the end, over all attempts, so that a run keeps its
place and its quota while a failed attempt is made again. While the run is suspended there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rl_api.progress import QueueStatus
from rl_operator.decide.diagnose import one_line
from rl_operator.decide.drift import drift
from rl_operator.decide.look import QUICK, SLOW, Look, removal, withdrawal
from rl_operator.decide.queueing import EVICTED
from rl_operator.model.decision import Decision, WorkloadChange
from rl_operator.model.names import PODS_ANNOTATION, Manifest
from rl_operator.model.parse import hash_of
from rl_operator.model.workload import PREEMPTOR, Workload, placed
from rl_operator.plan.effective import Effective
from rl_operator.plan.roles import Role
from rl_operator.render.claims import claim_templates
from rl_operator.render.objects import hashed
from rl_operator.render.topology import pod_set_topology
from rl_operator.render.workload import run_workload

QUEUED: Final = "Queued"

INADMISSIBLE: Final = "Inadmissible"
"""Reason of Admitted where no quota that comes free would help: its queue admits nothing, or never so much."""

WORKLOAD_PRIORITY_CLASS: Final = "WorkloadPriorityClass"

_PASSING: Final = frozenset({"ObjectRefused", "QuotaExceeded"})
"""Why a run may not begin for a moment, after which it is where it was in its queue."""

_MORE: Final = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
_NEVER: Final = re.compile(r"insufficient quota for (\S+) in flavor (\S+), .*?> maximum capacity \(([^)]+)\)")
_POD_SET: Final = re.compile(r"assign flavors to pod set (\S+): ")
_NO_FLAVOR: Final = re.compile(
    r"maximum capacity|unavailable in ClusterQueue|doesn't match node affinity|untolerated taint"
)
_MAY_FIT: Final = re.compile(r"more needed|topolog", re.I)
_SHUT: Final = re.compile(
    r"^(?:ClusterQueue|LocalQueue) \S+ (?:is inactive|is stopped|is terminating or missing|not found)"
)
_INADMISSIBLE: Final = frozenset({"Inadmissible", "Misconfigured", "Suspended"})
"""Reasons of Kueue for which a Workload is not even tried; the last two with its gate UnadmittedWorkloadsObservability."""


def enter(look: Look, effective: Effective) -> tuple[Look, Effective] | Decision:
    """The run as it may begin now, where its queue has put it; or what is to be done until it may."""
    world, main = look.world, look.world.workload
    if not world.kueue:
        missing = (
            f"nobody admits the run to queue {effective.queue}: this cluster has no Kueue (kueue.x-k8s.io/v1beta2, 0.15 or "
            "newer), which would; install it"
        )
        return _waiting(look, effective, "KueueMissing", missing)
    if world.priority.missing:
        waits = look.set("ClusterReady", "False", "PriorityClassMissing", world.priority.missing)
        withdrawn = without_quota(waits, "PriorityClassMissing")
        return withdrawn or _waiting(look, effective, "PriorityClassMissing", world.priority.missing)
    if world.refusal:
        return _waiting(look, effective, "ObjectRefused", world.refusal)
    wanted = hashed(run_workload(effective, world.priority))
    if main is None:
        if any(one.name == effective.name for one in world.workloads):  # on its way out
            return _waiting(look, effective, QUEUED, "its Workload is being made anew", QUICK)
        look = shown(look, effective, None)
        decision = _waiting(look, effective, QUEUED, f"given to queue {effective.queue}", QUICK)
        return replace(decision, create=(*_claims(look, effective), wanted), finalizer=look.finalizer(True))
    look = shown(look, effective, main)
    changed = _differs(main, wanted)
    if main.finished is not None or (main.reserved and not _same_pods(main, wanted)):
        # What is held is for pods that are not wanted any more.
        decision = _waiting(
            look, effective, QUEUED, "its Workload is made anew for what the run is now", QUICK
        )
        return replace(decision, delete=withdrawal(main))
    if not main.runs:
        decision = _waiting(look, effective, *why(look, effective, main))
        return replace(decision, create=_claims(look, effective), apply=(wanted,) if changed else ())
    unknown = sorted(set(main.flavors) - set(world.flavors))
    if unknown:
        missing = f"admitted, and what flavor {unknown[0]} is cannot be read: is there a ResourceFlavor of that name?"
        return _waiting(look, effective, "FlavorMissing", missing)
    roles = {name: placed(one, world.flavors, main.name) for name, one in main.assigned.items()}
    return admitted(look, main), effective.placed(roles)


def give_way(look: Look) -> Decision | None:
    """What is to be done with quota that is held for nothing: the queue wants it back, or the run has no use for it now.
    None: there is no such quota. To be asked where no attempt has its RayJob."""
    main, effective = look.world.workload, look.effective
    if main is None or main.finished is not None or not look.world.kueue:
        return None
    if main.taken:
        fact = main.evicted
        assert fact is not None
        why = f"the queue took the quota back: {by_whom(fact.message, look)}"
        for kind in ("Admitted", "ClusterReady"):
            look = look.set(kind, "False", EVICTED, why)
        decision = look.decide("Pending", QUICK, delete=removal(*look.world.rays))
        return replace(decision, tell_queue=(released(main),) if look.empty else ())
    if effective is None or not effective.queued:
        return _withdrawn(look) if look.empty else None
    return None


def without_quota(look: Look, reason: str) -> Decision | None:
    """A run that cannot begin, for a `reason` that may last, holds no quota; None: it has none, or the reason will pass."""
    main = look.world.workload
    if main is None or not main.reserved or reason in _PASSING or not look.empty:
        return None
    return _withdrawn(look)


def _withdrawn(look: Look) -> Decision:
    gone = withdrawal(*(one for one in look.world.workloads if not one.deleting))
    why = "the run cannot begin as it is, and has left its queue"
    look = look.showing(queue=None).set("Admitted", "False", "Withdrawn", why)
    return look.decide("Pending", SLOW, delete=gone)


def _differs(main: Workload, wanted: Manifest) -> bool:
    """Whether a Workload is not what was rendered, or somebody has changed what it says."""
    spec = wanted["spec"]
    said = (main.queue, main.priority, main.count)
    rendered = (spec["queueName"], spec["priority"], sum(one["count"] for one in spec["podSets"]))
    return main.hash != hash_of(wanted) or said != rendered


def _same_pods(main: Workload, wanted: Manifest) -> bool:
    return main.pods == str(wanted["metadata"]["annotations"][PODS_ANNOTATION])


def repriced(look: Look) -> Manifest | None:
    """The Workload of a run that has its quota, where another class is to say who goes first; None: it stays as it is."""
    main, effective, priority = look.world.workload, look.effective, look.world.priority
    if main is None or effective is None or not effective.queued or priority.missing or not main.runs:
        return None
    wanted = hashed(run_workload(effective, priority))
    # Kueue takes no other kind of class, and no class where there was none, for what has its quota.
    alike = main.priority_class and (priority.reference or {}).get("kind") == WORKLOAD_PRIORITY_CLASS
    return wanted if alike and _same_pods(main, wanted) and _differs(main, wanted) else None


def _claims(look: Look, effective: Effective) -> tuple[Manifest, ...]:
    """Templates of claims that are missing: Kueue counts the devices of a Workload by them."""
    wanted = claim_templates(effective.name, effective.roles, effective.metadata)
    missing, _ = drift([hashed(one) for one in wanted], look.world.live)
    return missing


def released(main: Workload) -> WorkloadChange:
    """That the pods of a Workload are gone, so that its quota is free for others."""
    fact = main.evicted
    assert fact is not None
    return WorkloadChange(main.name, main.uid, "Released", fact.reason, fact.message, fact.time)


def admitted(look: Look, main: Workload) -> Look:
    """With Admitted."""
    on = f" on {', '.join(main.flavors)}" if main.flavors else ""
    return look.set("Admitted", "True", "Admitted", f"queue {main.queue} has admitted the run{on}")


def shown(look: Look, effective: Effective, main: Workload | None) -> Look:
    """With the place in the queue."""
    line, world = look.world.line, look.world
    status = QueueStatus(
        name=main.queue if main is not None else str(effective.queue),
        workload=main.name if main is not None else None,
        position=line.position if line is not None else None,
        waiting=line.waiting if line is not None else None,
        since=(main.since or main.created) if main is not None else look.now,
        priority=main.priority if main is not None else world.priority.value,
        boost=main.boost if main is not None else None,
        flavors=main.flavors if main is not None and main.reserved else [],
    )
    return look.showing(queue=status)


def why(look: Look, effective: Effective, main: Workload) -> tuple[str, str]:
    """What the run waits for: one word, and a sentence."""
    if not main.active:
        return "Deactivated", (
            f"Workload {main.name} was deactivated by an administrator, or by Kueue as its pods were not ready in time; "
            "rltrain suspend and then rltrain resume give the run to its queue anew"
        )
    if main.reserved:
        return (
            "AdmissionCheck",
            f"queue {main.queue} has quota for the run, and waits for {main.checks or 'its checks'}",
        )
    line = look.world.line
    said = main.waits.message if main.waits is not None else line.said if line is not None else ""
    place = f"{ordinal(line.position)} of {line.waiting} in {main.queue}" if line is not None else "waits"
    asked = ", ".join(f"{count} {name}" for name, count in sorted(_needs(effective).items()))
    pods = sum(role.at_start for role in effective.roles)
    together = "".join(f", all {role.name}s in one {level}" for role, level in _together(effective))
    reason = INADMISSIBLE if _never(main.waits.reason if main.waits is not None else "", said) else QUEUED
    short = _short(said, effective.roles) if said else ""
    return reason, f"{place}; needs {asked or f'{pods} pods'}{together}{short}"


def _never(reason: str, message: str) -> bool:
    """Whether Kueue says that no quota which comes free would let the run in: somebody must change the queue, or the run."""
    if reason in _INADMISSIBLE or _SHUT.search(message):
        return True
    # Where a pod set has several flavors, one that never has enough is no matter if another one may have.
    sets = _POD_SET.split(message)
    return any(_NO_FLAVOR.search(said) and not _MAY_FIT.search(said) for said in (sets[0], *sets[2::2]))


def _together(effective: Effective) -> Iterator[tuple[Role, str]]:
    """Roles whose pods Kueue must find one domain for, and its level: Kueue says only what is wrong with the flavor that it
    tried last, which may be one that another role does not want anyway."""
    for role in effective.roles:
        if role.topology is not None and "required" in pod_set_topology(role) and role.at_start > 1:
            yield role, role.topology.level


def _needs(effective: Effective) -> dict[str, int]:
    """Accelerators that the run takes with its fewest samplers, by resource."""
    found: dict[str, int] = {}
    for role in effective.roles:
        if role.accelerators:
            name = role.pool.accelerator_resource or "accelerators"
            found[name] = found.get(name, 0) + role.accelerators * role.at_start
    return found


def _short(message: str, roles: Sequence[Role]) -> str:
    """What there is too little of, and all that Kueue says of it."""
    parts = [
        f"flavor {flavor} never has more than {most} {resource}"
        for resource, flavor, most in dict.fromkeys(_NEVER.findall(message))
    ]
    sets = _POD_SET.split(message)
    found = [
        (name, *short)
        for name, said in (("", sets[0]), *zip(sets[1::2], sets[2::2], strict=True))
        for short in _MORE.findall(said)
    ]
    for name, resource, flavor, more in dict.fromkeys(found):
        alone = {one[2] for one in found if one[1] == resource} == {flavor}
        asked = _asked(roles, name, resource, alone=alone) if more.isascii() and more.isdigit() else None
        free = asked - int(more) if asked is not None else -1
        has = f"{free} {resource} free" if free >= 0 else f"{more} more {resource} must come free"
        parts.append(f"{has} in flavor {flavor}, borrowed quota included")
    told = f", {'; '.join(dict.fromkeys(parts))}" if parts else ""
    return f"{told} [{one_line(message, 400)}]"


def _asked(roles: Sequence[Role], name: str, resource: str, *, alone: bool) -> int | None:
    """What Kueue has compared with what is free where it says of a pod set that it lacks some of a resource: what its pods
    ask for, and those before it that go to the same flavor (kueue: fitsResourceQuota). None: it cannot be said.

    `name`: of the pod set; empty: not known. `alone`: whether no other flavor lacks of it.
    """
    asking = [role for role in roles if role.accelerators and role.pool.accelerator_resource == resource]
    last = next((index for index, role in enumerate(asking) if role.name == name), None)
    if last is None:
        return asking[0].accelerators * asking[0].at_start if not name and len(asking) == 1 else None
    own = {pool.name for pool in asking[last].pools}
    same = [role for role in asking[: last + 1] if own & {pool.name for pool in role.pools}]
    # Pods of the same pools may be in another flavor, of which nothing is said.
    if len(same) > 1 and not alone:
        return None
    return sum(role.accelerators * role.at_start for role in same)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th ..."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"


def by_whom(message: str, look: Look) -> str:
    """Kueue's message about an eviction, with a name for whom it was."""
    found = PREEMPTOR.search(message)
    if found is None:
        return one_line(message, 300)
    whom = look.world.preemptor or f"a workload (UID {found['uid']})"
    return one_line(f"preempted for {whom} due to {found['why']}", 300)


def _waiting(look: Look, effective: Effective, reason: str, message: str, requeue: float = SLOW) -> Decision:
    if look.status.queue is None:
        look = shown(look, effective, look.world.workload)
    for kind in ("Admitted", "ClusterReady", "Training"):
        look = look.set(kind, "False", reason, message)
    return look.showing(dashboard_url=None).decide("Pending", requeue)
