"""The end of an attempt and of a run: success, failure, back-off, clean-up. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from rl_api.base import Duration
from rl_api.run import RetrySpec
from rl_operator.decide.attempt.outcome import (
    SUCCEEDED,
    Outcome,
    back_off,
    failed_so_far,
    failures,
    final_word,
)
from rl_operator.decide.look import IDLE, QUICK, STUCK_POD, Look, removal
from rl_operator.decide.status import last_figures
from rl_operator.model.decision import Decision, Note, Target, WorkloadChange
from rl_operator.model.gangs import POD_GROUPS, pod_group_name
from rl_operator.model.names import attempt_name

_UNREAD = "nobody was there to read its last figures: they are in summary.json of its folder"


def end_attempt(look: Look, end: Outcome) -> Look:
    """With the last attempt closed."""
    progress = look.status.progress
    step = progress.step if progress is not None else None
    return look.with_attempt(end_time=look.now, reason=f"{end.code}: {end.sentence}", to_step=step)


def close(look: Look, end: Outcome) -> Decision:
    """The last attempt is over: the run has succeeded, has failed, or gets another one."""
    number = look.status.attempts[-1].number
    ray, effective = look.world.ray(number), look.effective
    # How many steps a program of the user's does is its own to know.
    stop = effective.spec.stop if effective is not None and effective.backend.follows_stop else None
    figures = last_figures(look.status.progress, ray, end.code == SUCCEEDED, stop, look.now)
    look = end_attempt(look.showing(progress=figures), end).at_rest()
    look = look.set("Training", "False", end.code, end.sentence)
    if end.code == SUCCEEDED:
        return _succeeded(look)
    rest = removal(ray) if ray is not None else ()
    retry = effective.spec.retry if effective is not None else RetrySpec()
    word = final_word(look.status, end, retry.limit)
    if word is not None:
        look = look.set("ClusterReady", "False", "Finished", "the run has failed")
        look = look.set("Failed", "True", end.code, f"attempt {number} failed: {end.sentence} ({word})")
        # KubeRay does not see that it is over, and would keep the other pods.
        unseen = rest if end.code in ("HeadLost", "DeadlineExceeded") else ()
        return look.decide("Failed", QUICK, delete=unseen, finalizer=look.finalizer(False))
    look = look.note(Note("Warning", end.code, f"attempt {number} failed: {end.sentence}"))
    return replace(retry_later(look) or look.decide(), delete=rest)


def _succeeded(look: Look) -> Decision:
    progress, sentence = look.status.progress, "the run is done"
    if progress is None or progress.phase != "Succeeded":
        sentence += f"; {_UNREAD}"
    if progress is not None:
        progress = progress.model_copy(update={"phase": "Succeeded", "eta_seconds": None})
    look = look.showing(progress=progress)
    look = look.set("ClusterReady", "False", "Finished", "the run is done, and its pods are gone")
    look = look.set("Succeeded", "True", SUCCEEDED, sentence)
    return look.decide("Succeeded", QUICK, finalizer=look.finalizer(False))


def retry_later(look: Look) -> Decision | None:
    """Wait, and show it, where the next attempt may not begin yet; None: it may."""
    failed = failures(look.status.attempts)
    if not failed or look.status.attempts[-1].number != failed[-1].number:
        return None
    last = failed[-1]
    due = (last.end_time or look.now) + timedelta(seconds=back_off(failed_so_far(look.status)))
    left = (due - look.now).total_seconds()
    if left <= 0:
        return None
    why = (last.reason or "").partition(": ")[2]
    sentence = f"attempt {last.number} failed: {why}; the next one begins at {due:%H:%M:%S} UTC"
    return look.set("ClusterReady", "False", "Retrying", sentence).decide("Pending", max(left, 1.0))


def finished(look: Look) -> Decision:
    """The run is over: its queue is told when its pods are gone, and its objects go when their time has come."""
    decision = look.decide(requeue=IDLE, finalizer=look.finalizer(False))
    main = look.world.workload
    if main is not None and main.finished is None:
        ended = max((one.end_time for one in look.status.attempts if one.end_time), default=look.now)
        if any(not pod.gone for pod in look.world.pods) and look.now - ended < STUCK_POD:
            return replace(decision, requeue=QUICK)
        failed = look.conditions.get("Failed") if look.conditions.holds("Failed") else None
        reason, message = ("Failed", failed.message) if failed else ("Succeeded", "the run is done")
        decision = replace(
            decision, tell_queue=(WorkloadChange(main.name, main.uid, "Finished", reason, message),)
        )
    ttl = _time_to_live(look)
    ends = [attempt.end_time for attempt in look.status.attempts if attempt.end_time is not None]
    if ttl is None or not ends:
        return decision
    left = (max(ends) + timedelta(seconds=ttl) - look.now).total_seconds()
    if left > 0:
        return replace(decision, requeue=min(left, IDLE))
    world, name = look.world, str(look.world.metadata["name"])
    if not world.rays and not world.live:
        return decision
    gone = [Target("ConfigMap", attempt_name(name, attempt.number)) for attempt in look.status.attempts]
    gone += [Target(kind, name, live.uid) for (kind, name), live in sorted(world.live.items())]
    return replace(decision, delete=(*gone, *removal(*world.rays)))


def _time_to_live(look: Look) -> float | None:
    if look.effective is not None:
        ttl = look.effective.spec.cleanup.ttl_after_finished
        return ttl.seconds if ttl is not None else None
    # What the run itself says needs no profile, which may be gone by now.
    own = look.world.spec.get("cleanup")
    try:
        return Duration.parse(own.get("ttlAfterFinished") if isinstance(own, dict) else None).seconds
    except ValueError:
        return None


def without_gang(look: Look, decision: Decision) -> Decision:
    """A decision by which an attempt ends, with the end of its PodGroup: Volcano keeps room for one without pods."""
    attempt, status = look.open, decision.status
    if attempt is None or not any(
        one.number == attempt.number and one.end_time is not None for one in status.attempts
    ):
        return decision
    ray, effective = look.world.ray(attempt.number), look.effective
    if ray is not None:
        kinds = (ray.pod_group,) * bool(ray.pod_group)
    elif effective is not None and effective.profile_digest == attempt.profile_hash:
        # What its RayJob said is gone with that; a kind that the cluster does not know has no objects.
        gang = effective.profile.gang
        kinds = POD_GROUPS.get(gang.scheduler, ()) if gang is not None else ()
    else:  # its profile has changed, and may have had another gang, or one at all
        kinds = tuple(kind for each in POD_GROUPS.values() for kind in each)
    name = attempt.ray_job or attempt_name(str(look.world.metadata["name"]), attempt.number)
    gone = tuple(Target(kind, pod_group_name(kind, name)) for kind in kinds)
    return replace(decision, delete=(*decision.delete, *gone))
