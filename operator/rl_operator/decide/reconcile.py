"""The state machine of a run: from the world as it is to what should be done. Pure; the same world, the same answer.

    Accepted ── begin ──> attempt n open ──> Succeeded
       ^                    │    │    └── failed ──> Failed (nothing a retry can mend)
       │                    │    └── failed ──> back-off, then attempt n + 1
       └── not accepted     └── suspended: checkpoint, stop; resumed: attempt n + 1

An attempt is open from the creation of its RayJob until its end is written into the status; only then, and when
its RayJob and its head pod are gone, the next one begins. Whatever is read here is in the API server: an operator
that is killed at any line goes on where it was.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rl_api.progress import Attempt, RoleStatus
from rl_operator.decide.attempt.ending import close, finished, wait_for_back_off
from rl_operator.decide.attempt.outcome import Outcome, outcome
from rl_operator.decide.attempt.stopping import close_suspended, deleted, stop, suspended
from rl_operator.decide.conditions import Conditions
from rl_operator.decide.diagnose import diagnose, missing_claim, quota_sentence
from rl_operator.decide.queueing import held
from rl_operator.decide.scaling import scale
from rl_operator.decide.status import (
    cluster_condition,
    known_status,
    merge_progress,
    role_statuses,
    shown_phase,
    started,
    training_condition,
    unwritten,
)
from rl_operator.decide.turn import ACTIVE, QUICK, SLOW, STUCK_POD, Turn
from rl_operator.model.decision import Decision, Note
from rl_operator.model.names import HEAD, SAMPLER, Manifest, attempt_name
from rl_operator.model.seen import Live, Ray, World
from rl_operator.plan.effective import Effective, Plan
from rl_operator.render.config import secret
from rl_operator.render.objects import attempt_objects, run_objects


def reconcile(world: World, now: datetime, plan: Plan) -> Decision:
    """What is to be done for a run now.

    Args:
        world: what was seen.
        now: the time, in whole seconds, as the API server keeps times.
        plan: the run with its profile, from `rl_operator.plan.effective.plan`.
    """
    old = known_status(world.run)
    adopted = unwritten(old, world.rays, now)
    turn = Turn(
        world=world,
        now=now,
        plan=plan,
        old=old,
        conditions=Conditions(old.conditions, world.generation, now),
        attempts=[*old.attempts, *adopted],
        phase=old.phase or "Pending",
        roles=dict(old.roles),
        progress=old.progress,
        checkpoint=old.checkpoint,
        dashboard=old.dashboard_url,
        notes=[started(attempt) for attempt in adopted],
    )
    if world.deleted is not None:
        deleted(turn, world.deleted)
    elif turn.conditions.holds("Succeeded") or turn.conditions.holds("Failed"):
        finished(turn)
    else:
        _accept(turn)
        attempt = turn.open
        if attempt is not None:
            _watch(turn, attempt)
        elif world.suspended:
            suspended(turn)
        else:
            _begin(turn)
    return turn.decision()


def _accept(turn: Turn) -> None:
    if isinstance(turn.plan, Effective):
        turn.conditions.set("Accepted", "True", "Valid", "the run can be carried out")
    elif turn.open is None:
        # What an attempt has begun with is not taken from it because the profile changed meanwhile.
        turn.conditions.set("Accepted", "False", turn.plan.reason, turn.plan.message)


def _watch(turn: Turn, attempt: Attempt) -> None:
    """An attempt is under way."""
    world, conditions = turn.world, turn.conditions
    ray = world.ray(attempt.number)
    stopping = conditions.since("Suspended", "Unknown") is not None
    _read(turn, attempt.number)
    if ray is None and (world.suspended or stopping):
        close_suspended(turn, attempt)
        return
    end = outcome(world, attempt.number)
    if end is not None:
        close(turn, attempt, end)
        return
    assert ray is not None
    _share(turn)
    turn.keep_finalizer(True)
    turn.pull_from(ray)
    if world.suspended or (stopping and ray.deleting):
        stop(turn, attempt, ray)
        return
    if stopping:
        conditions.set("Suspended", "False", "Resumed", "the wish to suspend was taken back")
    if ray.deleting:
        conditions.set("ClusterReady", "False", "Stopping", f"{ray.kind} {ray.name} is being deleted")
        return
    if (late := _overdue(turn)) is not None:
        close(turn, attempt, late)
        return
    found = diagnose(world, attempt.number, turn.effective)
    turn.roles = role_statuses(world, attempt.number, turn.plan, turn.roles, found)
    if held(turn, ray):
        turn.requeue = SLOW
        return
    cluster_condition(conditions, world, ray, turn.roles, turn.effective, found, turn.now)
    training_condition(conditions, world, ray, turn.now)
    turn.phase = shown_phase(world, ray, conditions, turn.now)
    _scale(turn, ray)
    turn.requeue = SLOW if conditions.holds("ClusterReady") else ACTIVE


def _scale(turn: Turn, ray: Ray) -> None:
    """Bring the number of samplers to what the spec says now, once training has begun with the fewest."""
    effective = turn.effective
    if ray.samplers is None or not ray.at_work or effective is None or not effective.elastic:
        return
    pods = turn.world.pods_of(ray.attempt)
    turn.scale = scale(ray.samplers, effective.role(SAMPLER).replicas, pods)
    if turn.scale is not None and not turn.world.scale_refusal:
        turn.notes.append(Note("Normal", "Scaling", turn.scale.sentence))


def _read(turn: Turn, attempt: int) -> None:
    """Take over what the driver said."""
    reading = turn.world.reading
    if reading is not None and reading.attempt == attempt:
        turn.progress = merge_progress(turn.progress, reading.progress)
        turn.checkpoint = reading.checkpoint or turn.checkpoint


def _overdue(turn: Turn) -> Outcome | None:
    """A guard for runs that the trainer's own limit does not end. Generous: waiting and starting take time as well."""
    if turn.effective is None or turn.effective.spec.stop.max_duration is None:
        return None
    if turn.effective.spec.scheduling.queue is not None:
        return None  # an attempt may wait in a queue for days, and the trainer counts for itself
    most = 2 * turn.effective.spec.stop.max_duration.seconds + 3600
    spent = sum(
        ((attempt.end_time or turn.now) - attempt.start_time).total_seconds()
        for attempt in turn.attempts
        if attempt.start_time is not None
    )
    if spent <= most:
        return None
    text = f"the attempts took {spent:.0f} s together, more than twice stop.maxDuration and an hour"
    return Outcome("DeadlineExceeded", text, mendable=False)


def _begin(turn: Turn) -> None:
    """Begin the next attempt, as soon as everything it needs is there and nothing of the last one is."""
    turn.phase, turn.requeue = "Pending", ACTIVE
    effective = turn.effective
    if effective is None:
        turn.keep_finalizer(False)
        turn.requeue = 60.0
        return
    if wait_for_back_off(turn) > 0 or _leftovers(turn):
        return
    blocked = _blocked(turn, effective)
    if blocked is not None:
        turn.conditions.set("ClusterReady", "False", *blocked)
        return
    number = turn.attempts[-1].number + 1 if turn.attempts else 1
    if turn.world.token is None:
        turn.create.append(secret(effective, turn.world.new_token))
    _share(turn)
    turn.create += attempt_objects(effective, number)
    turn.keep_finalizer(True)
    step = turn.checkpoint.step if turn.checkpoint is not None else 0
    name = attempt_name(effective.name, number)
    attempt = Attempt(number=number, ray_job=name, start_time=turn.now, from_step=step)
    turn.attempts.append(attempt)
    turn.roles = {plan.role: RoleStatus(desired=plan.replicas, reason="starting") for plan in effective.roles}
    conditions = turn.conditions
    if conditions.get("Suspended") is not None:
        conditions.set("Suspended", "False", "Resumed", f"the run goes on from step {step}")
    conditions.set("ClusterReady", "False", "Starting", "the pods are starting")
    conditions.set("Training", "False", "Starting", "the pods are starting")
    if effective.spec.scheduling.queue is not None:
        conditions.set("Admitted", "Unknown", "Queued", f"given to queue {effective.spec.scheduling.queue}")
    turn.notes.append(started(attempt))
    turn.phase, turn.requeue = "Starting", QUICK


def _blocked(turn: Turn, effective: Effective) -> tuple[str, str] | None:
    """Why no attempt can begin though the run is fine: reason and message."""
    world = turn.world
    if not world.kuberay:
        found = diagnose(world, 0, effective)[0]
        return found.reason, found.message
    if effective.claim is not None and world.claim_exists is False:
        missing = missing_claim(effective.claim)
        return missing.reason, missing.message
    if world.refusal:
        if "quota" in world.refusal:
            return "QuotaExceeded", f"a quota of this namespace is used up: {quota_sentence(world.refusal)}"
        return "ObjectRefused", world.refusal
    return None


def _leftovers(turn: Turn) -> bool:
    """Whether something of an earlier attempt is still there: it might write where the next one does."""
    for ray in turn.world.rays:
        turn.remove(ray)
    overdue = turn.now - STUCK_POD
    heads = [
        pod
        for pod in turn.world.pods
        if pod.role == HEAD and not pod.gone and (pod.deleting is None or pod.deleting > overdue)
    ]
    if turn.world.rays or heads:
        names = ", ".join([ray.name for ray in turn.world.rays] + [pod.name for pod in heads])
        turn.conditions.set("ClusterReady", "False", "Stopping", f"waiting for {names} to be gone")
        turn.requeue = QUICK
        return True
    return False


def _share(turn: Turn) -> None:
    """Bring the objects that all attempts share to what they should be."""
    if turn.effective is None:
        return
    for manifest in run_objects(turn.effective):
        live = turn.world.live.get((manifest["kind"], manifest["metadata"]["name"]))
        if live is None:
            turn.create.append(manifest)
        elif not _as_rendered(live, manifest):
            turn.apply.append(manifest)


def _as_rendered(live: Live, manifest: Manifest) -> bool:
    own = next(iter(manifest["metadata"]["annotations"].values()))
    return live.hash == own and _contains(live.spec, manifest["spec"])


def _contains(there: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; what the API server added does not matter."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(
            key in there and _contains(there[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(there, list)
            and len(there) == len(wanted)
            and all(_contains(one, other) for one, other in zip(there, wanted, strict=True))
        )
    return bool(there == wanted)
