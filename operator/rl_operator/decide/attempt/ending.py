"""The end of an attempt and of a run: success, failure, back-off, clean-up. Pure."""

from __future__ import annotations

from datetime import timedelta

from rl_api.base import Duration
from rl_api.progress import Attempt
from rl_operator.decide.attempt.outcome import SUCCEEDED, Outcome, back_off, failures, final_word
from rl_operator.decide.status import last_figures
from rl_operator.decide.turn import IDLE, QUICK, Turn
from rl_operator.model.decision import Note, Target
from rl_operator.model.names import attempt_name, secret_name

_UNREAD = "nobody was there to read its last figures: they are in summary.json of its folder"


def end_attempt(turn: Turn, attempt: Attempt, end: Outcome) -> None:
    """Write an attempt's end into the list of attempts."""
    step = turn.progress.step if turn.progress is not None else None
    closed = {"end_time": turn.now, "reason": f"{end.code}: {end.sentence}", "to_step": step}
    turn.attempts[-1] = attempt.model_copy(update=closed)


def close(turn: Turn, attempt: Attempt, end: Outcome) -> None:
    """The attempt is over: the run has succeeded, has failed, or gets another one."""
    conditions, ray = turn.conditions, turn.world.ray(attempt.number)
    spec = turn.effective.spec if turn.effective else None
    # How many steps a program of the user's does is its own to know.
    stop = spec.stop if spec is not None and spec.trainer.kind != "command" else None
    turn.progress = last_figures(turn.progress, ray, end.code == SUCCEEDED, stop, turn.now)
    end_attempt(turn, attempt, end)
    turn.roles = {
        name: role.model_copy(update={"ready": 0, "reason": None}) for name, role in turn.roles.items()
    }
    turn.dashboard = None
    conditions.set("Training", "False", end.code, end.sentence)
    if end.code == SUCCEEDED:
        said = turn.progress is not None and turn.progress.phase == "Succeeded"
        if turn.progress is not None:
            turn.progress = turn.progress.model_copy(update={"phase": "Succeeded", "eta_seconds": None})
        conditions.set("ClusterReady", "False", "Finished", "the run is done, and its pods are gone")
        conditions.set(
            "Succeeded", "True", SUCCEEDED, "the run is done" if said else f"the run is done; {_UNREAD}"
        )
        turn.phase, turn.requeue = "Succeeded", QUICK
        turn.keep_finalizer(False)
        return
    limit = turn.effective.spec.retry.limit if turn.effective else 3
    word = final_word(turn.attempts, end, limit)
    if word is not None:
        conditions.set("ClusterReady", "False", "Finished", "the run has failed")
        conditions.set(
            "Failed", "True", end.code, f"attempt {attempt.number} failed: {end.sentence} ({word})"
        )
        turn.phase, turn.requeue = "Failed", QUICK
        turn.keep_finalizer(False)
        if ray is not None and end.code in ("HeadLost", "DeadlineExceeded"):
            turn.remove(ray)  # KubeRay does not see that it is over, and would keep the other pods
        return
    turn.notes.append(Note("Warning", end.code, f"attempt {attempt.number} failed: {end.sentence}"))
    if ray is not None:
        turn.remove(ray)
    wait_for_back_off(turn)


def wait_for_back_off(turn: Turn) -> float:
    """Seconds until the next attempt may begin; the wait is shown."""
    failed = failures(turn.attempts)
    if not failed or not turn.attempts or turn.attempts[-1].number != failed[-1].number:
        return 0.0
    last = failed[-1]
    due = (last.end_time or turn.now) + timedelta(seconds=back_off(len(failed)))
    left = (due - turn.now).total_seconds()
    if left > 0:
        turn.conditions.set(
            "ClusterReady",
            "False",
            "Retrying",
            f"attempt {last.number} failed: {(last.reason or '').partition(': ')[2]}; "
            f"the next one begins at {due:%H:%M:%S} UTC",
        )
        turn.phase, turn.requeue = "Pending", max(left, 1.0)
    return left


def finished(turn: Turn) -> None:
    """The run is over: its objects go when their time has come."""
    turn.keep_finalizer(False)
    turn.requeue = IDLE
    ttl = _time_to_live(turn)
    ends = [attempt.end_time for attempt in turn.attempts if attempt.end_time is not None]
    if ttl is None or not ends:
        return
    left = (max(ends) + timedelta(seconds=ttl) - turn.now).total_seconds()
    if left > 0:
        turn.requeue = min(left, IDLE)
        return
    world, name = turn.world, str(turn.world.metadata["name"])
    if not world.rays and not world.live:
        return
    turn.delete += [Target("ConfigMap", attempt_name(name, attempt.number)) for attempt in turn.attempts]
    turn.delete.append(Target("Secret", secret_name(name)))
    turn.delete += [Target(kind, name, live.uid) for (kind, name), live in sorted(world.live.items())]
    for ray in world.rays:
        turn.remove(ray)


def _time_to_live(turn: Turn) -> float | None:
    # From the run itself: it may be changed while the run goes on and after, and needs no profile.
    text = (turn.world.spec.get("cleanup") or {}).get("ttlAfterFinished")
    if text is None and turn.effective is not None:
        ttl = turn.effective.spec.cleanup.ttl_after_finished
        return ttl.seconds if ttl is not None else None
    try:
        return Duration.parse(text).seconds
    except ValueError:
        return None
