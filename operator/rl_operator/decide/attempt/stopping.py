"""Stopping an attempt on purpose: suspending and deleting a run, with a checkpoint first. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from rl_api.progress import Attempt, CheckpointRequest
from rl_operator.decide.attempt.ending import end_attempt
from rl_operator.decide.attempt.outcome import SUSPENDED, Outcome, outcome
from rl_operator.decide.look import IDLE, QUICK, STUCK_POD, Look, removal, withdrawal
from rl_operator.model.decision import Decision
from rl_operator.model.seen import Ray
from rl_operator.model.settings import FINALIZER


@dataclass(frozen=True)
class Wait:
    """The driver has not finished its last checkpoint."""

    ask: float | None
    """Seconds that it may take, where it must be asked for it now."""


@dataclass(frozen=True)
class Ready:
    """The attempt may be stopped, as far as its checkpoint goes."""

    sentence: str
    checkpoint: Literal["written", "none", "late"] = "none"


def deleted(look: Look, since: datetime) -> Decision:
    """The run was deleted: one more checkpoint if there is something to keep, then its RayJob goes, then our finalizer.

    In this order, as the Secret with the token goes with the run: without it KubeRay would keep the RayJob and its pods.
    """
    if FINALIZER not in (look.world.metadata.get("finalizers") or ()):
        return look.decide(requeue=IDLE)
    attempt = look.open
    ray = look.world.ray(attempt.number) if attempt else None
    if (
        attempt is not None
        and ray is not None
        and not ray.deleting
        and outcome(look.world, attempt.number) is None
    ):
        look = wishing(look.answering(ray), attempt)
        ready = ready_to_stop(look, attempt, ray, since)
        if isinstance(ready, Wait):
            decision = look.decide("Stopping", QUICK, ask=ready.ask)
            return replace(decision, pull=look.pull(ray))
    if any(each.needs_token for each in look.world.rays) and not stuck(look, since):
        return look.decide("Stopping", QUICK, delete=removal(*look.world.rays))
    # Its Workload goes with the run, and the quota with that: not before the pods.
    if look.world.workloads and not stuck(look, since):
        rays = removal(*look.world.rays)
        if rays or any(not pod.gone for pod in look.world.pods):
            return look.decide("Stopping", QUICK, delete=rays)
    return look.decide(requeue=IDLE, finalizer=False)


def stop(look: Look, attempt: Attempt, ray: Ray) -> Decision:
    """Suspend an attempt: a checkpoint first, then its RayJob goes."""
    look = wishing(look, attempt)
    since = look.conditions.since("Suspended", "Unknown") or look.now
    if ray.deleting:
        if stuck(look, since):
            why = "KubeRay does not remove the RayJob: is the KubeRay operator running?"
            look = look.set("Suspended", "Unknown", "Stuck", why)
        return look.decide("Stopping", QUICK, delete=removal(ray))
    ready = ready_to_stop(look, attempt, ray, since)
    if isinstance(ready, Wait):
        look = look.set("Suspended", "Unknown", "Checkpointing", "waiting for the driver's checkpoint")
        return look.decide("Stopping", QUICK, ask=ready.ask)
    look = look.set("Suspended", "Unknown", "Stopping", f"{ready.sentence}; the pods are being stopped")
    look = look.set("Training", "False", SUSPENDED, "the run is being suspended")
    look = look.set("ClusterReady", "False", "Stopping", "the run is being suspended")
    return look.decide("Stopping", QUICK, delete=removal(ray))


def wishing(look: Look, attempt: Attempt) -> Look:
    """With the wish for a last checkpoint, which lasts until the attempt ends or goes on."""
    fresh = CheckpointRequest(id=f"{attempt.number}-{look.now:%Y%m%dT%H%M%SZ}", time=look.now)
    return look.showing(checkpoint_request=look.old.checkpoint_request or fresh)


def stuck(look: Look, since: datetime) -> bool:
    """Whether what should be gone has had all the time that there is for a checkpoint and an end."""
    return look.now - since > timedelta(seconds=look.grace) + STUCK_POD


def ready_to_stop(
    look: Look, attempt: Attempt, ray: Ray, since: datetime, *, known: bool = False
) -> Ready | Wait:
    """Why the attempt may be stopped now, as far as its checkpoint goes, or that it may not be yet; `known`: that there is
    something to save."""
    world, wish, ask = look.world, look.status.checkpoint_request, look.world.ask
    trained = known or world.said(attempt.number) is not None or look.conditions.holds("Training")
    if world.head(attempt.number) is None or not trained:
        return Ready("no training was under way")
    if world.unasked:
        return Ready(f"no checkpoint can be asked for: {world.unasked}")
    state, said = "unasked", ""
    if ask is not None and wish is not None and (ask.attempt, ask.id) == (attempt.number, wish.id):
        state, said = ask.state, ask.message  # an answer to an earlier wish is none
    if state == "done":
        return Ready("the checkpoint is written", "written")
    if state == "refused":
        return Ready(f"there is no new checkpoint ({said})")
    if state == "absent" and ray.kind == "RayCluster":
        return Ready("nobody trains in it now")
    left = look.grace - (look.now - since).total_seconds()
    if left <= 0:
        why = f" ({said})" if said else ""
        return Ready(f"no checkpoint came within the grace period of {look.grace:g} s{why}", "late")
    return Wait(None if state == "running" else left)


def close_suspended(look: Look, attempt: Attempt) -> Decision:
    """The RayJob of a run that is being suspended is gone: so are the pods, or they are waited for."""
    since = look.conditions.since("Suspended", "Unknown") or look.now
    if look.world.pods_of(attempt.number) and not stuck(look, since):
        look = look.set("Suspended", "Unknown", "Stopping", "the pods are being stopped")
        return look.decide("Stopping", QUICK)
    checkpoint = look.status.checkpoint
    kept = f"at step {checkpoint.step}" if checkpoint else "before the first checkpoint"
    look = end_attempt(look, Outcome(SUSPENDED, f"suspended {kept}"))
    if look.world.wants_suspend:
        return suspended(look)
    return look.set("Suspended", "False", "Resumed", "the run goes on").decide("Pending", 0.0)


def suspended(look: Look) -> Decision:
    """Nothing runs, and nothing is to run."""
    checkpoint = look.status.checkpoint
    kept = f"; it goes on from step {checkpoint.step}" if checkpoint else ""
    look = look.at_rest().set("Suspended", "True", SUSPENDED, f"spec.suspend is true{kept}")
    if look.conditions.get("ClusterReady") is not None:
        look = look.set("ClusterReady", "False", SUSPENDED, "the run is suspended")
        look = look.set("Training", "False", SUSPENDED, "the run is suspended")
    # What waits in no queue has no place in one, and no quota; not before its pods are gone.
    workloads = withdrawal(*look.world.workloads)
    gone = removal(*look.world.rays)
    if workloads and not look.empty:
        return look.decide("Suspended", QUICK, delete=gone)
    if look.conditions.get("Admitted") is not None:
        look = look.set("Admitted", "False", SUSPENDED, "a suspended run stands in no queue")
    look = look.showing(queue=None)
    return look.decide("Suspended", IDLE, delete=(*gone, *workloads), finalizer=look.finalizer(False))
