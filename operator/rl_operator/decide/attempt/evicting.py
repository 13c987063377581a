"""Pods that must go while the run goes on: its queue took the quota back, or a node is drained. Pure.

A checkpoint first, then the RayJob goes; only when its pods are gone the quota is given back. The attempt stays open, and
when the queue admits the run again its RayJob is made anew and goes on from that checkpoint. That is no failure.

Each step is in `status.evictions` before the next one is taken: an operator that dies between two goes on where it was, and
gives nothing back twice.
"""

from __future__ import annotations

from dataclasses import replace

from rl_api.progress import MOST_EVICTIONS, Attempt, Eviction
from rl_operator.decide.attempt.stopping import Ready, Wait, ready_to_stop, stuck, wishing
from rl_operator.decide.draining import drained, leaving
from rl_operator.decide.eviction_cost import predicted_seconds
from rl_operator.decide.look import QUICK, Look, removal, withdrawal
from rl_operator.decide.queued import by_whom, enter, give_way, released, shown
from rl_operator.decide.queueing import EVICTED
from rl_operator.decide.status import IGNORED
from rl_operator.model.decision import Decision, Note
from rl_operator.model.names import REPLACED
from rl_operator.model.record import NODE_DRAINED
from rl_operator.model.seen import Ray
from rl_operator.model.workload import Fact
from rl_operator.plan.effective import Effective


def pending(look: Look, attempt: Attempt) -> Eviction | None:
    """The eviction of this attempt that is not over; None: its pods may run."""
    newest = look.status.evictions[-1:]
    if newest and newest[0].attempt == attempt.number and newest[0].resumed_time is None:
        return newest[0]
    return None


def demanded(look: Look, ray: Ray | None) -> Fact | None:
    """Why the pods of the attempt must go; None: they need not."""
    if ray is None:
        return None
    return _by_the_queue(look) or drained(look, ray)


def _by_the_queue(look: Look) -> Fact | None:
    main, queue = look.world.workload, look.status.queue
    if queue is None or queue.workload is None or not look.world.kueue:
        return None
    if main is None:
        return Fact("WorkloadDeleted", f"Workload {queue.workload} was deleted by somebody")
    if main.evicted is not None:
        return replace(main.evicted, message=by_whom(main.evicted.message, look))
    if main.finished is not None:
        return Fact("WorkloadFinished", "its Workload was marked as finished by somebody")
    if not main.admitted:
        return Fact("QuotaLost", "its Workload has no quota any more")
    return None


def evict(look: Look, attempt: Attempt, ray: Ray | None) -> Decision | Look:
    """What is to be done while pods must go, or the run waits for others; the look where the attempt goes on as it is."""
    eviction, fresh = pending(look, attempt), False
    if eviction is not None and ray is not None and _is_taken_back(look, ray, eviction):
        look, eviction = look.showing(evictions=look.status.evictions[:-1]), None
    if eviction is None:
        why = demanded(look, ray)
        if why is None:
            return look
        look, eviction = begun(look, attempt, why)
        fresh = True
    if ray is not None and eviction.released_time is not None and not ray.deleting:
        return _resumed(look)  # its operator died before it could say so
    if ray is not None:
        return _stop(look, attempt, ray, eviction, fresh)
    if eviction.released_time is None:
        return _release(look, attempt, eviction)
    return _again(look, attempt)


def _is_taken_back(look: Look, ray: Ray, eviction: Eviction) -> bool:
    """Whether the node stays after all, and the pods that wait for a checkpoint to leave it may stay too."""
    waits = eviction.reason == NODE_DRAINED and eviction.stopped_time is None and not ray.deleting
    going = any(
        pod.deleting is not None and pod.role not in REPLACED for pod in look.world.pods_of(ray.attempt)
    )
    return waits and not going and leaving(look, ray) is None


def begun(look: Look, attempt: Attempt, why: Fact) -> tuple[Look, Eviction]:
    """With a new eviction."""
    progress = look.status.progress
    eviction = Eviction(
        attempt=attempt.number,
        reason=why.reason,
        message=why.message,
        time=look.now,
        step=progress.step if progress is not None else None,
        predicted_seconds=predicted_seconds(look.status, look.now),
    )
    return look.showing(evictions=[*look.status.evictions, eviction][-MOST_EVICTIONS:]), eviction


def _with(look: Look, **fields: object) -> tuple[Look, Eviction]:
    *before, newest = look.status.evictions
    changed = newest.model_copy(update=fields)
    return look.showing(evictions=[*before, changed]), changed


def _stop(look: Look, attempt: Attempt, ray: Ray, eviction: Eviction, fresh: bool) -> Decision:
    """A checkpoint, then the RayJob goes; `fresh`: the eviction has just begun."""
    why = eviction.message
    if not ray.deleting and eviction.stopped_time is None:
        ready = _ready(look, attempt, ray, eviction)
        if fresh and not isinstance(ready, Wait):
            # It is written down before anything goes: that the RayJob is gone would be taken for a failure.
            return _said(look, why).decide("Stopping", 0.0)
        look = wishing(look.answering(ray), attempt)
        if isinstance(ready, Wait):
            look = _said(look, f"{why}; waiting for the driver's checkpoint")
            return replace(look.decide("Stopping", QUICK, ask=ready.ask), pull=look.pull(ray))
        look, eviction = _with(look, checkpoint=ready.checkpoint, stopped_time=look.now)
        why = f"{why}; {ready.sentence}"
    elif eviction.stopped_time is None:
        look, eviction = _with(look, stopped_time=look.now)  # somebody else deletes it
    waits = _waits(
        look, eviction, f"KubeRay to remove {ray.kind} {ray.name}: is the KubeRay operator running?"
    )
    look = _said(look, f"{why}; the pods are being stopped{waits}")
    return look.decide("Stopping", QUICK, delete=removal(ray))


def _waits(look: Look, eviction: Eviction, what: str) -> str:
    """What the end of the pods waits for, where that takes long: for whole minutes, as each change is written."""
    waited = look.now - (eviction.stopped_time or look.now)
    if waited < IGNORED:
        return ""
    minutes = int(waited.total_seconds() // 60)
    return f" and have been for {minutes} min; waiting for {what}"


def _ready(look: Look, attempt: Attempt, ray: Ray, eviction: Eviction) -> Ready | Wait:
    # Where a checkpoint was wished for already, whoever looked then knew that there was one to write; its operator may have
    # died since, and this one has not heard of the driver.
    known = look.old.checkpoint_request is not None
    return ready_to_stop(wishing(look, attempt), attempt, ray, eviction.time or look.now, known=known)


def _release(look: Look, attempt: Attempt, eviction: Eviction) -> Decision:
    """The RayJob is gone; when its pods are too, the quota is free for others."""
    main = look.world.workload
    since = eviction.stopped_time or eviction.time or look.now
    left = look.world.pods_of(attempt.number)
    if left and not stuck(look, since):
        names = ", ".join(sorted(pod.name for pod in left)[:3]) + (" ..." if len(left) > 3 else "")
        waits = _waits(look, eviction, f"{names} to be gone: do their nodes answer?")
        return _said(look, f"{eviction.message}; the pods are being stopped{waits}").decide("Stopping", QUICK)
    took = (look.now - (eviction.time or look.now)).total_seconds()
    look, eviction = _with(look, released_time=look.now, seconds_to_release=max(took, 0.0))
    look = look.without_pods(look.now).at_rest()
    decision = _said(look, f"{eviction.message}; {_goes_on(look)}").decide("Pending", QUICK)
    if main is not None and _moved(look) and any(one.by_topology for one in main.assigned.values()):
        # The queue has chosen the nodes, and would put new pods on the same ones.
        return replace(decision, delete=withdrawal(main))
    return replace(decision, tell_queue=(released(main),) if main is not None and main.taken else ())


def _again(look: Look, attempt: Attempt) -> Decision | Look:
    """The pods are gone: wait for the queue, and begin again where it stopped."""
    if (gives := give_way(look)) is not None:
        return gives
    effective = look.effective
    if effective is None:
        return _said(look, "the run cannot be carried out now").decide("Pending", 60.0)
    if effective.queued:
        entered = enter(look, effective)
        if isinstance(entered, Decision):
            return entered
        look, effective = entered
    return begin_again(look, effective, attempt)


def begin_again(look: Look, effective: Effective, attempt: Attempt) -> Look:
    """The attempt as it goes on; its RayJob is to be made with this plan."""
    look = _resumed(replace(look, plan=effective))
    step = look.status.checkpoint.step if look.status.checkpoint is not None else 0
    sentence = f"attempt {attempt.number} goes on from step {step} as {attempt.ray_job}"
    return look.note(Note("Normal", "AttemptResumed", sentence))


def _resumed(look: Look) -> Look:
    checkpoint = look.status.checkpoint
    step = checkpoint.step if checkpoint is not None else 0
    look, eviction = _with(look, resumed_time=look.now, resumed_step=step)
    look = look.without_pods(eviction.released_time or look.now)  # an older version has not put it down
    newest = look.status.attempts[-1]
    return look.with_attempt(preemptions=newest.preemptions + 1)


def _goes_on(look: Look) -> str:
    checkpoint = look.status.checkpoint
    goes = f"goes on from step {checkpoint.step}" if checkpoint is not None else "begins anew"
    return f"the run {goes} {'on other nodes' if _moved(look) else 'when it is admitted again'}"


def _moved(look: Look) -> bool:
    """Whether only the nodes are to be others: what a queue has admitted stays so."""
    return look.status.evictions[-1].reason == NODE_DRAINED


def _said(look: Look, message: str) -> Look:
    if look.effective is not None and look.effective.queued and look.status.queue is not None:
        look = shown(look, look.effective, look.world.workload)
    kinds = ("ClusterReady", "Training") if _moved(look) else ("Admitted", "ClusterReady", "Training")
    for kind in kinds:
        look = look.set(kind, "False", EVICTED, message)
    return look.showing(dashboard_url=None)
