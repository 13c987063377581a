"""Waiting for another actor's answer: always with a deadline, and errors that are sentences."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from rl_api.errors import ActorDied, DeadlineExceeded, RLTrainError


def answer(ref: ray.ObjectRef[Any], actor: str, phase: str, timeout: float | None) -> Any:
    """The result of an actor call, waited for at most `timeout` seconds (None: the caller keeps the
    deadline).

    Raises DeadlineExceeded, ActorDied (the process is gone) or the RLTrainError that the actor raised itself.
    """
    try:
        return ray.get(ref, timeout=timeout)
    except GetTimeoutError:
        raise DeadlineExceeded(
            f"{phase}: {actor} did not answer within {timeout:.0f} s; if the machine is overloaded "
            "give it more cores, otherwise look at that actor's log"
        ) from None
    except RayActorError as error:
        raise ActorDied(
            f"{phase}: {actor} has died ({_first_line(error)}); resume the run from its last checkpoint"
        ) from None
    except RayTaskError as error:
        if isinstance(error.cause, RLTrainError):
            raise error.cause from None
        raise


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
