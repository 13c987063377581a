"""Stopping an attempt on purpose: suspending and deleting a run, with a checkpoint first. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rl_api.progress import Attempt, CheckpointRequest
from rl_operator.decide.attempt.ending import end_attempt
from rl_operator.decide.attempt.outcome import SUSPENDED, Outcome, outcome
from rl_operator.decide.look import IDLE, QUICK, STUCK_POD, Look, removal
from rl_operator.model.decision import Decision
from rl_operator.model.seen import Ray
from rl_operator.model.settings import FINALIZER


@dataclass(frozen=True)
class Wait:
    """The driver has not finished its last checkpoint."""

    ask: float | None
    """Seconds that it may take, where it must be asked for it now."""


def deleted(look: Look, since: datetime) -> Decision:
    """The run was deleted: one more checkpoint if there is something to keep, then our finalizer goes."""
    if FINALIZER not in (look.world.metadata.get("finalizers") or ()):
        return look.decide(requeue=IDLE)
    attempt = look.open
    ray = look.world.ray(attempt.number) if attempt else None
    if attempt is None or ray is None or ray.deleting or outcome(look.world, attempt.number) is not None:
        return look.decide(requeue=IDLE, finalizer=False)
    look = _wishing(look.answering(ray), attempt)
    ready = ready_to_stop(look, attempt, ray, since)
    if isinstance(ready, Wait):
        decision = look.decide("Stopping", QUICK, ask=ready.ask)
    else:
        decision = look.decide(requeue=IDLE, finalizer=False)
    return replace(decision, pull=look.pull(ray))


def stop(look: Look, attempt: Attempt, ray: Ray) -> Decision:
    """Suspend an attempt: a checkpoint first, then its RayJob goes."""
    look = _wishing(look, attempt)
    since = look.conditions.since("Suspended", "Unknown") or look.now
    if ray.deleting:
        if _stuck(look, since):
            why = "KubeRay does not remove the RayJob: is the KubeRay operator running?"
            look = look.set("Suspended", "Unknown", "Stuck", why)
        return look.decide("Stopping", QUICK)
    ready = ready_to_stop(look, attempt, ray, since)
    if isinstance(ready, Wait):
        look = look.set("Suspended", "Unknown", "Checkpointing", "waiting for the driver's checkpoint")
        return look.decide("Stopping", QUICK, ask=ready.ask)
    look = look.set("Suspended", "Unknown", "Stopping", f"{ready}; the pods are being stopped")
    look = look.set("Training", "False", SUSPENDED, "the run is being suspended")
    look = look.set("ClusterReady", "False", "Stopping", "the run is being suspended")
    return look.decide("Stopping", QUICK, delete=removal(ray))


def _wishing(look: Look, attempt: Attempt) -> Look:
    """With the wish for a last checkpoint, which lasts until the attempt ends or goes on."""
    fresh = CheckpointRequest(id=f"{attempt.number}-{look.now:%Y%m%dT%H%M%SZ}", time=look.now)
    return replace(look, request=look.old.checkpoint_request or fresh)


def _stuck(look: Look, since: datetime) -> bool:
    return look.now - since > timedelta(seconds=look.grace) + STUCK_POD


def ready_to_stop(look: Look, attempt: Attempt, ray: Ray, since: datetime) -> str | Wait:
    """Why the attempt may be stopped now, as far as its checkpoint goes, or that it may not be yet."""
    world = look.world
    head, ask = world.head(attempt.number), world.ask
    reading = world.reading is not None and world.reading.attempt == attempt.number
    if head is None or not (reading or look.conditions.holds("Training")):
        return "no training was under way"
    if ask is not None and (
        look.request is None or (ask.attempt, ask.id) != (attempt.number, look.request.id)
    ):
        ask = None  # an answer to an earlier wish is none
    if ask is not None and ask.state == "done":
        return "the checkpoint is written"
    if ask is not None and ask.state == "refused":
        return f"there is no new checkpoint ({ask.message})"
    if ask is not None and ask.state == "absent" and ray.kind == "RayCluster":
        return "nobody trains in it now"
    left = look.grace - (look.now - since).total_seconds()
    if left <= 0:
        why = f" ({ask.message})" if ask is not None and ask.message else ""
        return f"no checkpoint came within the grace period of {look.grace:g} s{why}"
    return Wait(left if ask is None or ask.state in ("absent", "failed") else None)


def close_suspended(look: Look, attempt: Attempt) -> Decision:
    """The RayJob of a run that is being suspended is gone: so are the pods, or they are waited for."""
    since = look.conditions.since("Suspended", "Unknown") or look.now
    if look.world.pods_of(attempt.number) and not _stuck(look, since):
        look = look.set("Suspended", "Unknown", "Stopping", "the pods are being stopped")
        return look.decide("Stopping", QUICK)
    kept = f"at step {look.checkpoint.step}" if look.checkpoint else "before the first checkpoint"
    look = end_attempt(look, Outcome(SUSPENDED, f"suspended {kept}"))
    if look.world.wants_suspend:
        return suspended(look)
    return look.set("Suspended", "False", "Resumed", "the run goes on").decide("Pending", 0.0)


def suspended(look: Look) -> Decision:
    """Nothing runs, and nothing is to run."""
    kept = f"; it goes on from step {look.checkpoint.step}" if look.checkpoint else ""
    look = look.at_rest().set("Suspended", "True", SUSPENDED, f"spec.suspend is true{kept}")
    if look.conditions.get("ClusterReady") is not None:
        look = look.set("ClusterReady", "False", SUSPENDED, "the run is suspended")
        look = look.set("Training", "False", SUSPENDED, "the run is suspended")
    return look.decide("Suspended", IDLE, delete=removal(*look.world.rays), finalizer=look.finalizer(False))
