"""The attempts that a status lists, and what those come to that it does not list any more. Pure."""

from __future__ import annotations

from rl_api.progress import MOST_ATTEMPTS, EarlierAttempts, RunStatus
from rl_operator.decide.attempt.outcome import failures, had_pods


def listed(status: RunStatus) -> RunStatus:
    """The status with `MOST_ATTEMPTS` attempts at most; what those come to that go is in `earlier`.

    What stays: the first, the newest, and the last that failed, with which the next failure is compared.
    """
    over = len(status.attempts) - MOST_ATTEMPTS
    if over <= 0:
        return status
    last_failed = failures(status.attempts)[-1:]
    gone = [one for one in status.attempts[1:-1] if one not in last_failed][:over]
    before = status.earlier or EarlierAttempts(failed=0, seconds=0.0)
    earlier = EarlierAttempts(
        failed=before.failed + len(failures(gone)),
        seconds=before.seconds + sum(had_pods(one) for one in gone),
    )
    return status.model_copy(
        update={"attempts": [one for one in status.attempts if one not in gone], "earlier": earlier}
    )
