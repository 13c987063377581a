"""A run whose RayJob a queue admits by its label: Kueue owns `suspend` of it, and it is made with that. Pure.

An attempt that is evicted stays open: its RayJob keeps its place in the queue, KubeRay starts its pods again when it is
admitted again, and the driver goes on from the last checkpoint. That is no failure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rl_operator.decide.diagnose import one_line
from rl_operator.decide.look import Look
from rl_operator.model.seen import Ray

EVICTED: Final = "Evicted"

STOPPED: Final = "Stopped"
"""Reason of Kueue's event about a job that it suspends; its message says why."""

_BY_OTHERS: Final = "SuspendedByOthers"


def admission(look: Look, ray: Ray) -> Look:
    """With Admitted, and where the attempt must wait for its queue with ClusterReady and Training too."""
    conditions, effective, checkpoint = look.conditions, look.effective, look.status.checkpoint
    known = conditions.get("Admitted")
    queue = effective.queue if effective is not None else None
    if not ray.held:
        if ray.labelled:
            return look.set("Admitted", "True", "Admitted", "the queue has admitted the run")
        return replace(look, conditions=conditions.clear("Admitted"))
    goes_on = f"goes on from step {checkpoint.step}" if checkpoint is not None else "begins anew"
    if ray.labelled and look.status.queue is not None:
        reason = "QueuedTwice"
        message = (
            f"Kueue has admitted the run, and queues its {ray.kind} {ray.name} a second time: in a namespace with a "
            "LocalQueue named default it does so unless its integrations leave out ray.io/rayjob and ray.io/raycluster"
        )
    elif not ray.labelled:
        reason = _BY_OTHERS
        message = (
            f"{ray.kind} {ray.name} was suspended by somebody else: the run {goes_on} when its spec.suspend is false again "
            "(rltrain suspend is the way to suspend a run)"
        )
    elif known is not None and (known.status == "True" or known.reason == EVICTED):
        said = [one for one in look.world.events if (one.name, one.reason) == (ray.name, STOPPED)]
        why = f" ({one_line(said[0].message, 300)})" if said and said[0].message else ""
        by = f"queue {queue}" if queue else "the queue"
        reason = EVICTED
        message = f"{by} took the quota back{why}; the run {goes_on} when it is admitted again"
    elif look.world.kueue:
        reason, message = "Queued", "the run waits in its queue for quota"
    else:
        reason = "KueueMissing"
        message = (
            f"nobody admits the run to queue {queue}: this cluster has no Kueue, which would; install it"
        )
    for kind in ("Admitted", "ClusterReady", "Training"):
        look = look.set(kind, "False", reason, message)
    return look.showing(dashboard_url=None)
