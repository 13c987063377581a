"""Stopping an attempt on purpose: suspending and deleting a run, with a checkpoint first. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from rl_api.progress import Attempt
from rl_operator.decide.attempt.ending import end_attempt
from rl_operator.decide.attempt.outcome import SUSPENDED, Outcome, outcome
from rl_operator.decide.turn import IDLE, QUICK, STUCK_POD, Turn
from rl_operator.model.seen import Ray
from rl_operator.model.settings import FINALIZER


def deleted(turn: Turn, since: datetime) -> None:
    """The run was deleted: one more checkpoint if there is something to keep, then our finalizer goes."""
    turn.requeue = IDLE
    if FINALIZER not in (turn.world.metadata.get("finalizers") or ()):
        return
    attempt = turn.open
    ray = turn.world.ray(attempt.number) if attempt else None
    if attempt is None or ray is None or ray.deleting or outcome(turn.world, attempt.number) is not None:
        turn.keep_finalizer(False)
        return
    turn.pull_from(ray)
    if ready_to_stop(turn, attempt, ray, since) is None:
        turn.phase = "Stopping"
    else:
        turn.keep_finalizer(False)


def stop(turn: Turn, attempt: Attempt, ray: Ray) -> None:
    """Suspend an attempt: a checkpoint first, then its RayJob goes."""
    conditions = turn.conditions
    since = conditions.since("Suspended", "Unknown") or turn.now
    turn.phase, turn.requeue = "Stopping", QUICK
    if ray.deleting:
        _still_stopping(turn, since)
        return
    ready = ready_to_stop(turn, attempt, ray, since)
    if ready is None:
        conditions.set("Suspended", "Unknown", "Checkpointing", "waiting for the driver's checkpoint")
        return
    conditions.set("Suspended", "Unknown", "Stopping", f"{ready}; the pods are being stopped")
    conditions.set("Training", "False", SUSPENDED, "the run is being suspended")
    conditions.set("ClusterReady", "False", "Stopping", "the run is being suspended")
    turn.remove(ray)


def _still_stopping(turn: Turn, since: datetime) -> None:
    if turn.now - since > timedelta(seconds=turn.grace) + STUCK_POD:
        turn.conditions.set(
            "Suspended",
            "Unknown",
            "Stuck",
            "KubeRay does not remove the RayJob: is the KubeRay operator running?",
        )


def ready_to_stop(turn: Turn, attempt: Attempt, ray: Ray, since: datetime) -> str | None:
    """Why the attempt may be stopped now, as far as its checkpoint goes; None: not yet."""
    world = turn.world
    head, ask = world.head(attempt.number), world.ask
    reading = world.reading is not None and world.reading.attempt == attempt.number
    if head is None or not (reading or turn.conditions.holds("Training")):
        return "no training was under way"
    if ask is not None and ask.attempt != attempt.number:
        ask = None
    if ask is not None and ask.state == "done":
        return "the checkpoint is written"
    if ask is not None and ask.state == "refused":
        return f"there is no new checkpoint ({ask.message})"
    if ask is not None and ask.state == "absent" and ray.kind == "RayCluster":
        return "nobody trains in it now"
    left = turn.grace - (turn.now - since).total_seconds()
    if left <= 0:
        why = f" ({ask.message})" if ask is not None and ask.message else ""
        return f"no checkpoint came within the grace period of {turn.grace:g} s{why}"
    if ask is None or ask.state in ("absent", "failed"):
        turn.ask = left
    turn.requeue = QUICK
    return None


def close_suspended(turn: Turn, attempt: Attempt) -> None:
    """The RayJob of a run that is being suspended is gone: so are the pods, or they are waited for."""
    pods = turn.world.pods_of(attempt.number)
    since = turn.conditions.since("Suspended", "Unknown") or turn.now
    if pods and turn.now - since <= timedelta(seconds=turn.grace) + STUCK_POD:
        turn.conditions.set("Suspended", "Unknown", "Stopping", "the pods are being stopped")
        turn.phase, turn.requeue = "Stopping", QUICK
        return
    kept = f"at step {turn.checkpoint.step}" if turn.checkpoint else "before the first checkpoint"
    end_attempt(turn, attempt, Outcome(SUSPENDED, f"suspended {kept}"))
    if turn.world.suspended:
        suspended(turn)
    else:
        turn.conditions.set("Suspended", "False", "Resumed", "the run goes on")
        turn.phase, turn.requeue = "Pending", 0.0


def suspended(turn: Turn) -> None:
    """Nothing runs, and nothing is to run."""
    for ray in turn.world.rays:
        turn.remove(ray)
    kept = f"; it goes on from step {turn.checkpoint.step}" if turn.checkpoint else ""
    turn.conditions.set("Suspended", "True", SUSPENDED, f"spec.suspend is true{kept}")
    if turn.conditions.get("ClusterReady") is not None:
        turn.conditions.set("ClusterReady", "False", SUSPENDED, "the run is suspended")
        turn.conditions.set("Training", "False", SUSPENDED, "the run is suspended")
    turn.roles = {
        name: role.model_copy(update={"ready": 0, "reason": None}) for name, role in turn.roles.items()
    }
    turn.dashboard = None
    turn.keep_finalizer(False)
    turn.phase, turn.requeue = "Suspended", IDLE
