"""How an attempt ended, and whether another one can mend it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rl_api.errors import INVALID_INPUT, REWARD_FAILED
from rl_api.progress import Attempt, RunStatus
from rl_operator.decide.diagnose import dead_pods, exit_code, failure_sentence, memory_sentence, one_line
from rl_operator.model.names import REPLACED
from rl_operator.model.seen import Ray, World

SUSPENDED: Final = "Suspended"
SUCCEEDED: Final = "Succeeded"
QUOTA_TAKEN: Final = "QuotaTaken"
"""The queue of the run took its quota back, and the job did not live to be started again. No failure."""
NO_ROOM: Final = "NoRoomForGang"
"""YuniKorn found no room for all pods for as long as it waits for some. No failure: another attempt waits again."""

REPLANNED: Final = "Replanned"
"""The next attempt has another placement. No failure."""

INTERRUPTED: Final = "Interrupted"
"""Somebody ended the driver with a signal. It counts against the retries, as it may be a program's own doing."""
NO_FAILURES: Final = frozenset({SUSPENDED, SUCCEEDED, QUOTA_TAKEN, NO_ROOM, REPLANNED})
"""Codes of attempts that ended and did not fail."""

_RESERVATION_OVER: Final = "ResourceReservationTimeout"
_SIGNALLED: Final = frozenset({130, 143})
_FIRST_BACK_OFF: Final = 10.0
_LONGEST_BACK_OFF: Final = 300.0


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt."""

    code: str
    """One word: Succeeded, InvalidInput, AppFailed, OutOfMemory, HeadLost ..."""
    sentence: str
    mendable: bool = True
    """Whether a new attempt may go better."""


_QUOTA_TAKEN: Final = Outcome(QUOTA_TAKEN, "it was suspended by its queue, or by somebody, and ended by that")


def outcome(world: World, attempt: int) -> Outcome | None:
    """How the attempt ended; None: it goes on."""
    ray = world.ray(attempt)
    if ray is None:
        return Outcome("Lost", "its RayJob or RayCluster was deleted by somebody")
    if ray.kind == "RayCluster" or ray.deleting:
        return None
    if not ray.submitted and any(
        pod.reason == _RESERVATION_OVER for pod in world.pods if pod.attempt == attempt
    ):
        # KubeRay would make pods for an application that YuniKorn has ended for good.
        return Outcome(
            NO_ROOM, "its scheduler found no room for all of its pods in time and gave back what it held"
        )
    if ray.deployment_status == "ValidationFailed":
        return Outcome("Refused", f"KubeRay refuses the RayJob: {one_line(ray.message)}", mendable=False)
    if ray.deployment_status == "Complete":
        if ray.job_status == "SUCCEEDED":
            return Outcome(SUCCEEDED, "the run is done")
        if ray.held:
            return _QUOTA_TAKEN
        return Outcome("Stopped", "the Ray job was stopped by somebody")
    if ray.deployment_status == "Failed":
        return _QUOTA_TAKEN if ray.held else _failed(world, ray)
    if ray.submitted and not ray.held:
        return _head_lost(world, attempt)
    return None


def _failed(world: World, ray: Ray) -> Outcome:
    code = exit_code(ray.message)
    if code == INVALID_INPUT:
        return Outcome("InvalidInput", failure_sentence(ray.message), mendable=False)
    if code == REWARD_FAILED:
        return Outcome("RewardFailed", failure_sentence(ray.message), mendable=False)
    if code in _SIGNALLED:
        return Outcome(INTERRUPTED, "the driver was told to stop")
    for dead in dead_pods(world, ray.attempt):
        # Attempts survive lost samplers and workers of the task: what became of one is no reason for an end that is not
        # about these.
        if dead.role not in REPLACED or dead.role.replace("-", " ") in failure_sentence(ray.message):
            return Outcome(dead.reason, dead.message)
    if ray.reason and ray.reason != "AppFailed":
        return Outcome(ray.reason, one_line(ray.message) or "KubeRay says no more")
    if code is None and "supervisor" in ray.message.lower():
        return Outcome("HeadLost", f"the driver died with its head: {one_line(ray.message, 200)}")
    said = failure_sentence(ray.message)
    memory = memory_sentence(world, ray.attempt, said)
    return Outcome("AppFailed", said) if memory is None else Outcome("OutOfMemory", memory)


def _head_lost(world: World, attempt: int) -> Outcome | None:
    head = world.head(attempt)
    if head is not None and head.phase not in ("Failed", "Succeeded"):
        return None
    dead = next(dead_pods(world, attempt), None)
    if dead is not None and dead.role == "head":
        return Outcome(dead.reason, dead.message)
    where = f" on node {head.node}" if head is not None and head.node else ""
    return Outcome("HeadLost", f"the head pod{where} is gone, and the driver with it")


def code_of(attempt: Attempt) -> str:
    """The one-word reason of an attempt that ended: what stands before the colon."""
    return (attempt.reason or "").partition(":")[0]


def failures(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts that failed, oldest first."""
    return [
        attempt
        for attempt in attempts
        if attempt.end_time is not None and code_of(attempt) not in NO_FAILURES
    ]


def failed_so_far(status: RunStatus) -> int:
    """How many attempts failed, those as well that are no longer listed."""
    return len(failures(status.attempts)) + (status.earlier.failed if status.earlier is not None else 0)


def had_pods(attempt: Attempt) -> float:
    """Seconds for which an attempt had all its pods: it may have waited for nodes for as long as it takes. Of one that goes
    on only those before its pods were last taken away."""
    if attempt.ready_time is None or attempt.end_time is None:
        return attempt.held_seconds
    return attempt.held_seconds + max((attempt.end_time - attempt.ready_time).total_seconds(), 0.0)


def final_word(status: RunStatus, end: Outcome, limit: int) -> str | None:
    """Why there is no attempt after the newest, which ended with `end`; None: there is one.

    `limit`: attempts after the first.
    """
    if not end.mendable:
        return "another attempt would end the same way"
    if failed_so_far(status) > limit:
        return f"it was the last of {limit + 1} attempts" if limit else "spec.retry.limit is 0"
    failed = failures(status.attempts)
    if len(failed) < 2:
        return None
    last, before = failed[-1], failed[-2]
    if end.code == "OutOfMemory" and code_of(before) == end.code:
        return "it ran out of memory twice"
    if end.code == "AppFailed" and (last.reason, last.to_step) == (before.reason, before.to_step):
        return "it failed twice in the same way at the same step"
    return None


def back_off(failed: int) -> float:
    """Seconds to wait after the `failed`-th failure: 10, 20, 40 ... 300."""
    return float(min(_FIRST_BACK_OFF * 2 ** max(failed - 1, 0), _LONGEST_BACK_OFF))
