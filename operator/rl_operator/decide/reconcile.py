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

from dataclasses import replace
from datetime import datetime

from rl_api.progress import Attempt, RoleStatus
from rl_operator.decide.attempt.ending import close, finished, retry_later, without_gang
from rl_operator.decide.attempt.evicting import evict, pending
from rl_operator.decide.attempt.outcome import Outcome, had_pods, outcome
from rl_operator.decide.attempt.stopping import close_suspended, deleted, stop, suspended
from rl_operator.decide.boost import boosting
from rl_operator.decide.borrowing import allowed_samplers, borrowing
from rl_operator.decide.diagnose import (
    Diagnosis,
    diagnose,
    missing_claim,
    missing_dra,
    missing_kuberay,
    no_quota,
)
from rl_operator.decide.draining import samplers_to_move
from rl_operator.decide.drift import drift
from rl_operator.decide.eviction_cost import trains
from rl_operator.decide.gangs import missing_pod_group, with_gang
from rl_operator.decide.look import QUICK, SLOW, SOON, TURN, Look, removal, started
from rl_operator.decide.placement import (
    going_on,
    placement_of,
    told,
    with_shared,
    without_news_of_placement,
)
from rl_operator.decide.queued import admitted, enter, give_way, shown, without_quota
from rl_operator.decide.queueing import admission
from rl_operator.decide.replanning import close_replanned, is_ending, replan
from rl_operator.decide.room import no_room, samplers_with_room
from rl_operator.decide.scaling import scale
from rl_operator.decide.status import (
    cluster_condition,
    merge_progress,
    role_statuses,
    shown_phase,
    training_condition,
    within_budget,
)
from rl_operator.decide.unreadable import hands_off, wrong_status
from rl_operator.decide.usage import with_usage
from rl_operator.model.decision import Decision, Note, Scale, Target
from rl_operator.model.names import HEAD, LEARNER, SAMPLER, Manifest, attempt_name
from rl_operator.model.seen import Ray, World
from rl_operator.plan.effective import Effective, Plan
from rl_operator.render.objects import attempt_objects, run_objects


def reconcile(world: World, now: datetime, plan: Plan) -> Decision:
    """What is to be done for a run now, in whole seconds, as the API server keeps times."""
    if (wrong := wrong_status(world.run)) is not None:
        return hands_off(world.run, now, "StatusUnreadable", wrong)
    look = Look.first(world, now, plan)
    decision = without_gang(look, boosting(look, borrowing(look, _decide(look))))
    decision = replace(decision, status=without_news_of_placement(look.old, decision.status))
    wait = within_budget(look.old, decision.status, now, world.followed)
    if wait is None:
        return with_usage(look, decision)
    return replace(decision, status=look.old, requeue=min(wait, decision.requeue))


def _decide(look: Look) -> Decision:
    world = look.world
    if world.deleted is not None:
        return deleted(look, world.deleted)
    if look.conditions.holds("Succeeded") or look.conditions.holds("Failed"):
        return finished(look)
    look = _accepted(look)
    attempt = look.open
    if attempt is not None:
        return _watch(look, attempt)
    return suspended(look) if world.wants_suspend else _begin(look)


def _accepted(look: Look) -> Look:
    if isinstance(look.plan, Effective):
        late = ", ".join(look.world.late_nulls)
        no = f"; null came too late for {late}: that cannot be changed on a run that exists" if late else ""
        return look.set("Accepted", "True", "Valid", f"the run can be carried out{no}")
    if look.open is None:
        # What an attempt has begun with is not taken from it because the profile changed meanwhile.
        return look.set("Accepted", "False", look.plan.reason, look.plan.message)
    return look


def _watch(look: Look, attempt: Attempt) -> Decision:
    """An attempt is under way."""
    world = look.world
    ray = world.ray(attempt.number)
    stopping = look.conditions.since("Suspended", "Unknown") is not None
    look = _read(look, attempt.number)
    if ray is None and (world.wants_suspend or stopping):
        return close_suspended(look, attempt)
    if ray is None and is_ending(look, attempt):
        return close_replanned(look, attempt)
    parked = ray is None and pending(look, attempt) is not None
    end = outcome(world, attempt.number) if not parked else None
    if end is not None:
        return close(look, end)
    if not world.wants_suspend and not stopping:
        evicted = evict(look, attempt, ray)
        if isinstance(evicted, Decision):
            return _with_shared(look, evicted, ray)
        look = evicted
        replanned = replan(look, attempt, ray) if ray is not None else look
        if isinstance(replanned, Decision):
            return _with_shared(look, replanned, ray)
        look = replanned
    if ray is None:
        return _start(look, attempt.number)
    look = look.answering(ray)
    if world.wants_suspend or (stopping and ray.deleting):
        decision = stop(look, attempt, ray)
    else:
        if stopping:
            look = look.set("Suspended", "False", "Resumed", "the wish to suspend was taken back")
        if ray.deleting:
            away = f"{ray.kind} {ray.name} is being deleted"
            decision = look.set("ClusterReady", "False", "Stopping", away).decide()
        elif (late := _overdue(look)) is not None:
            return close(look, late)
        else:
            decision = _go_on(look, ray)
    return replace(_with_shared(look, decision, ray), pull=look.pull(ray))


def _with_shared(look: Look, decision: Decision, ray: Ray | None) -> Decision:
    """With what an attempt that goes on needs of the objects that all share."""
    # What the API server has just refused keeps no attempt from being watched and stopped; it is tried again the next time.
    create, apply = _shared(look, ray) if not look.world.refusal else ((), ())
    return replace(
        decision,
        create=(*create, *decision.create),
        apply=(*apply, *decision.apply),
        finalizer=look.finalizer(True),
    )


def _go_on(look: Look, ray: Ray) -> Decision:
    """Nothing ends the attempt: say how it goes."""
    look = look.showing(placement=going_on(look.status.placement, look.effective))
    wanted, crowded = _scale(look, ray)
    if crowded and not look.world.scale_refusal:
        look = replace(look, world=replace(look.world, scale_refusal=crowded))
    found = diagnose(look.world, ray.attempt, look.effective)
    found = with_gang(found, look.world, ray.attempt, look.effective)
    if ray.held:
        look = look.without_pods(look.now)
    look = _admission(look.showing(roles=role_statuses(look, ray, found)), ray)
    if ray.held:
        return look.decide("Pending", SLOW)
    look = _trained(training_condition(cluster_condition(_at_work(look, ray), ray, found), ray), ray)
    if wanted is not None and not look.world.scale_refusal:
        look = look.note(Note("Normal", "Scaling", wanted.sentence))
    requeue = SLOW if look.conditions.holds("ClusterReady") else SOON
    return replace(look.decide(shown_phase(look, ray), requeue), scale=wanted)


def _admission(look: Look, ray: Ray) -> Look:
    """With Admitted, whoever admits the run."""
    main, effective = look.world.workload, look.effective
    if ray.held or main is None or look.status.queue is None:
        return admission(look, ray)
    return admitted(shown(look, effective, main) if effective is not None else look, main)


def _at_work(look: Look, ray: Ray) -> Look:
    """With the time at which all pods of the attempt were there, once they are."""
    # Where they have been there for longer than is known, an older version has begun the attempt.
    known = look.status.attempts[-1].ready_time is not None or look.conditions.holds("ClusterReady")
    return look.with_attempt(ready_time=look.now) if ray.at_work and not known else look


def _trained(look: Look, ray: Ray) -> Look:
    """With the time at which the attempt trained with the pods that it has, once it does."""
    reading, attempt = look.world.said(ray.attempt), look.status.attempts[-1]
    since = look.conditions.since("Training", "True")
    if reading is None or since is None or not trains(attempt, look.status, reading.time):
        return look
    # Not now: where an older version has begun the attempt, it may have trained for long.
    return look.with_attempt(trained_time=since)


def _scale(look: Look, ray: Ray) -> tuple[Scale | None, str]:
    """Bring the number of samplers to what the spec says now, once training has begun with the fewest; why it is less."""
    effective, crowded = look.effective, ""
    if ray.samplers is None or not ray.at_work or (effective is not None and not effective.elastic):
        return None, ""
    if ray.samplers.hosts > 1:
        return None, ""  # it began with samplers of several pods, which stay as many, and where they are
    if ray.labelled and look.status.queue is None:
        return None, ""  # its queue has admitted so many
    wanted = may = ray.samplers.replicas
    if effective is not None:
        wanted, may = effective.role(SAMPLER).replicas, samplers_with_room(effective, ray, look.world.others)
    if effective is not None and may < wanted:
        crowded = (
            f"{wanted} samplers are wanted and {may} allowed now: namespace {effective.namespace} has no room for more "
            f"under profile {effective.spec.profile}"
        )
    given = allowed_samplers(look.world, effective, may)
    if given < may:
        crowded = f"{wanted} samplers are wanted, and the queue gives {given} now"
    wish = scale(ray.samplers, given, look.world.pods_of(ray.attempt))
    if wish is None and effective is not None:
        away = samplers_to_move(look, ray, effective.role(SAMPLER).at_start)
        wish = Scale(ray.samplers, ray.samplers.replicas, away) if away else None
    return wish, crowded


def _read(look: Look, attempt: int) -> Look:
    """With what the driver said."""
    reading = look.world.said(attempt)
    if reading is None:
        return look
    progress = merge_progress(look.status.progress, reading.progress, reading.time, look.now)
    return look.showing(
        progress=progress,
        placement=told(look.status.placement, reading.progress.placement),
        checkpoint=reading.checkpoint or look.status.checkpoint,
    )


def _overdue(look: Look) -> Outcome | None:
    """A guard for runs that the trainer's own limit does not end. Generous: pods that come and go take time as well. The
    profile's limit holds whatever has become of the run's spec; time for which a queue keeps it waiting does not count."""
    longest = look.plan.limits.max_duration
    if longest is not None and not any(ray.held for ray in look.world.rays):
        spent = _spent(look, _holding(look))
        if spent > longest.seconds + look.grace:
            text = (
                f"the attempts took {spent:.0f} s together, more than the {longest} that the profile allows"
            )
            return Outcome("DeadlineExceeded", text, mendable=False)
    if look.effective is None or look.effective.spec.stop.max_duration is None:
        return None
    if look.effective.spec.scheduling.queue is not None:
        return None  # an attempt may wait in a queue for days, and the trainer counts for itself
    most = 2 * look.effective.spec.stop.max_duration.seconds + 3600
    spent = _spent(look, _working(look))
    if spent <= most:
        return None
    text = f"the attempts took {spent:.0f} s together, more than twice stop.maxDuration and an hour"
    return Outcome("DeadlineExceeded", text, mendable=False)


def _spent(look: Look, now: float) -> float:
    """Seconds for which all attempts together had their pods, those that the one that goes on has for `now`."""
    earlier = look.status.earlier
    before = sum(had_pods(attempt) for attempt in look.status.attempts)
    return before + (earlier.seconds if earlier is not None else 0.0) + now


def _holding(look: Look) -> float:
    """Seconds since the attempt that goes on has its pods, or, where they never are ready, holds a node with one."""
    pods = look.world.pods_of(look.open.number) if look.open is not None else ()
    begun = min((pod.started for pod in pods if pod.started is not None), default=look.now)
    return _working(look) or (look.now - begun).total_seconds()


def _working(look: Look) -> float:
    """Seconds since the attempt that goes on has its pods."""
    if look.open is None:
        return 0.0
    begun = look.open.ready_time or look.conditions.since("ClusterReady", "True")
    if begun is None:
        return 0.0
    begun = max(begun, look.conditions.since("Admitted", "True") or begun)
    return (look.now - begun).total_seconds()


def _begin(look: Look) -> Decision:
    """Begin the next attempt, as soon as everything it needs is there and nothing of the last one is."""
    if (gives := give_way(look)) is not None:
        return gives
    effective = look.effective
    if effective is None:
        return look.decide("Pending", 60.0, finalizer=look.finalizer(False))
    waiting = retry_later(look) or _leftovers(look)
    if waiting is not None:
        return waiting
    blocked = _blocked(look, effective)
    if blocked is not None:
        waits = look.set("ClusterReady", "False", blocked.reason, blocked.message)
        return without_quota(waits, blocked.reason) or waits.decide("Pending")
    # A run that stands in its queue has its turn among those of its namespace behind it.
    crowded = no_room(effective, look.world.others) if look.world.workload is None else None
    if crowded is not None:
        return look.set("ClusterReady", "False", crowded.reason, crowded.message).decide("Pending", TURN)
    if effective.queued:
        entered = enter(look, effective)
        if isinstance(entered, Decision):
            return entered
        look, effective = entered
        look = replace(look, plan=effective)
    status = look.status
    before = status.attempts[-1] if status.attempts else None
    number = before.number + 1 if before is not None else 1
    step = status.checkpoint.step if status.checkpoint is not None else 0
    attempt = Attempt(
        number=number,
        ray_job=attempt_name(effective.name, number),
        start_time=look.now,
        from_step=step,
        **effective.began,
    )
    roles = {role.name: RoleStatus(desired=role.wholes, reason="starting") for role in effective.roles}
    nulls = look.world.nulls if before is None else status.nulls
    placement = placement_of(effective)
    if placement is not None and placement.shared:
        learners = roles.get(LEARNER)
        roles[SAMPLER] = with_shared(roles.get(SAMPLER), placement, learners)
    look = look.showing(attempts=[*status.attempts, attempt], roles=roles, placement=placement, nulls=nulls)
    look = look.note(started(attempt, before))
    if look.conditions.get("Suspended") is not None:
        look = look.set("Suspended", "False", "Resumed", f"the run goes on from step {step}")
    if effective.labelled:
        look = look.set("Admitted", "Unknown", "Queued", f"given to queue {effective.queue}")
    # Nothing reads what the attempt before was told; those of a run that is retried for days would fill a namespace.
    gone = (Target("ConfigMap", attempt_name(effective.name, before.number)),) if before is not None else ()
    return replace(_start(look, number), delete=gone)


def _start(look: Look, number: int) -> Decision:
    """Make what an attempt needs, when it begins and when it goes on after its pods were taken away."""
    assert look.effective is not None
    own = look.world.claims.get(look.effective.claim or "")
    effective = replace(look.effective, shared_claim=own is not None and own.shared)
    look = look.set("ClusterReady", "False", "Starting", "the pods are starting")
    look = look.set("Training", "False", "Starting", "the pods are starting")
    missing, apply = _shared(look)
    again = look.status.attempts[-1].preemptions
    create = (
        *missing,
        *attempt_objects(effective, number, look.world.key, look.world.pod_group or "", again),
    )
    decision = look.decide("Starting", QUICK, finalizer=look.finalizer(True))
    return replace(decision, create=create, apply=apply)


def _blocked(look: Look, effective: Effective) -> Diagnosis | None:
    """Why no attempt can begin though the run is fine."""
    world = look.world
    if not world.kuberay:
        return missing_kuberay()
    if (missing := missing_pod_group(effective, world.pod_group)) is not None:
        return missing
    if not world.dra and (without := missing_dra(effective.roles)) is not None:
        return without
    for path, name in effective.claims.items():
        claim = world.claims.get(name)
        if claim is not None and not claim.exists:
            return missing_claim(name, path)
        if claim is not None and (why := effective.wrong_claim(path, claim.storage_class)):
            return Diagnosis("ClaimNotAllowed", why)
    if world.refusal:
        return no_quota(world.refusal) or Diagnosis("ObjectRefused", world.refusal)
    return None


def _leftovers(look: Look) -> Decision | None:
    """Wait while something of an earlier attempt is there: it might write where the next one does. None: nothing is."""
    world = look.world
    names = ", ".join([ray.name for ray in world.rays] + [pod.name for pod in look.holding(HEAD)])
    if not names:
        return None
    look = look.set("ClusterReady", "False", "Stopping", f"waiting for {names} to be gone")
    return look.decide("Pending", QUICK, delete=removal(*world.rays))


def _shared(look: Look, ray: Ray | None = None) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """The objects that all attempts share: those that are missing, and those that differ from what they should be.

    The driver of an attempt that is under way, that of `ray`, answers where it did when it began.
    """
    effective = look.effective
    if effective is not None and ray is not None and ray.status_port is not None:
        effective = effective.answering_at(ray.status_port)
    wanted = run_objects(effective) if effective is not None else ()
    return drift(wanted, look.world.live)
