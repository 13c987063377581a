"""A run that its queue admits by a Workload of ours: asking for it, waiting, and what is said of it. Pure.

The Workload is the run's: it is there from the first wish for pods to the end, over all attempts, so that a run keeps its
place and its quota while a failed attempt is made again. While the run is suspended there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rl_api.progress import QueueStatus
from rl_operator.decide.diagnose import one_line
from rl_operator.decide.drift import drift
from rl_operator.decide.look import QUICK, SLOW, Look
from rl_operator.model.decision import Decision, Target, WorkloadChange
from rl_operator.model.names import Manifest
from rl_operator.model.workload import Workload, placed
from rl_operator.plan.effective import Effective
from rl_operator.render.claims import claim_templates
from rl_operator.render.objects import hashed
from rl_operator.render.workload import run_workload

QUEUED: Final = "Queued"

_MORE: Final = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
_NEVER: Final = re.compile(r"insufficient quota for (\S+) in flavor (\S+), .*?> maximum capacity \(([^)]+)\)")
_PREEMPTOR: Final = re.compile(r"\(UID: ([^,]+), JobUID: [^)]*\) due to ([^;]+)")


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
        return _waiting(look, effective, "PriorityClassMissing", world.priority.missing)
    if world.refusal:
        return _waiting(look, effective, "ObjectRefused", world.refusal)
    wanted = hashed(run_workload(effective, world.priority))
    if main is None:
        if any(one.slice is None for one in world.workloads):  # on its way out
            return _waiting(look, effective, QUEUED, "its Workload is being made anew", QUICK)
        look = shown(look, effective, None)
        decision = _waiting(look, effective, QUEUED, f"given to queue {effective.queue}", QUICK)
        return replace(decision, create=(*_claims(look, effective), wanted), finalizer=look.finalizer(True))
    look = shown(look, effective, main)
    if main.taken:
        fact = main.evicted
        assert fact is not None
        decision = _waiting(look, effective, QUEUED, f"the queue took the quota back: {fact.message}", QUICK)
        return replace(decision, tell_queue=(released(main),))
    changed = main.hash != wanted["metadata"]["annotations"]["rltrain.dev/manifest"]
    if main.finished is not None or (changed and main.reserved):
        # What is held is for pods that are not wanted any more.
        decision = _waiting(
            look, effective, QUEUED, "its Workload is made anew for what the run is now", QUICK
        )
        return replace(decision, delete=(Target("Workload", main.name, main.uid),))
    if not main.runs:
        decision = _waiting(look, effective, *why(look, effective, main))
        return replace(decision, create=_claims(look, effective), apply=(wanted,) if changed else ())
    unknown = sorted(set(main.flavors) - set(world.flavors))
    if unknown:
        missing = f"admitted, and what flavor {unknown[0]} is cannot be read: is there a ResourceFlavor of that name?"
        return _waiting(look, effective, "FlavorMissing", missing)
    roles = {name: placed(one, world.flavors, main.name) for name, one in main.assigned.items()}
    return admitted(look, main), effective.placed(roles)


def _claims(look: Look, effective: Effective) -> tuple[Manifest, ...]:
    """Templates of claims that are missing: Kueue counts the devices of a Workload by them."""
    wanted = claim_templates(effective.name, effective.roles, effective.metadata)
    missing, _ = drift([hashed(one) for one in wanted], look.world.live)
    return missing


def released(main: Workload) -> WorkloadChange:
    """That the pods of a Workload are gone, so that its quota is free for others."""
    fact = main.evicted
    assert fact is not None
    return WorkloadChange(main.name, main.uid, "Released", fact.reason, fact.message)


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
        return "Deactivated", f"Workload {main.name} was deactivated; set its spec.active to true again"
    if main.reserved:
        return (
            "AdmissionCheck",
            f"queue {main.queue} has quota for the run, and waits for {main.checks or 'its checks'}",
        )
    said = main.waits.message if main.waits is not None else ""
    line = look.world.line
    place = f"{ordinal(line.position)} of {line.waiting} in {main.queue}" if line is not None else "waits"
    needs = _needs(effective)
    asked = ", ".join(f"{count} {name}" for name, count in sorted(needs.items()))
    pods = sum(role.at_start for role in effective.roles)
    return QUEUED, f"{place}; needs {asked or f'{pods} pods'}{_short(said, needs) if said else ''}"


def _needs(effective: Effective) -> dict[str, int]:
    """Accelerators that the run takes with its fewest samplers, by resource."""
    found: dict[str, int] = {}
    for role in effective.roles:
        if role.accelerators:
            name = role.pool.accelerator_resource or "accelerators"
            found[name] = found.get(name, 0) + role.accelerators * role.at_start
    return found


def _short(message: str, needs: Mapping[str, int]) -> str:
    """What there is too little of, and all that Kueue says of it."""
    parts = [
        f"flavor {flavor} never has more than {most} {resource}"
        for resource, flavor, most in dict.fromkeys(_NEVER.findall(message))
    ]
    for resource, flavor, more in dict.fromkeys(_MORE.findall(message)):
        free = needs.get(resource, -1) - int(more) if more.isascii() and more.isdigit() else -1
        has = f"{free} {resource} free" if free >= 0 else f"{more} more {resource} must come free"
        parts.append(f"{has} in flavor {flavor}, borrowed quota included")
    told = f", {'; '.join(parts)}" if parts else ""
    return f"{told} [{one_line(message, 400)}]"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th ..."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"


def by_whom(message: str, look: Look) -> str:
    """Kueue's message about an eviction, with a name for whom it was."""
    found = _PREEMPTOR.search(message)
    if found is None:
        return one_line(message, 300)
    whom = look.world.preemptor or f"a workload (UID {found[1]})"
    return one_line(f"preempted for {whom} due to {found[2]}", 300)


def _waiting(look: Look, effective: Effective, reason: str, message: str, requeue: float = SLOW) -> Decision:
    if look.status.queue is None:
        look = shown(look, effective, look.world.workload)
    for kind in ("Admitted", "ClusterReady", "Training"):
        look = look.set(kind, "False", reason, message)
    return look.showing(dashboard_url=None).decide("Pending", requeue)
