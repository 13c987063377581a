"""Calls to actors with a deadline, and their failures as sentences."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from rl_api import errors
from rl_api.errors import ActorDied, DeadlineExceeded, RLTrainError
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.flow.pulse import Watch

# What travels in a call itself; arguments above 100 KB Ray would move through the object store.
INLINE_BYTES = 64 * 1024
# What Ray answers for an actor that is gone: killed by Ray to save the node's memory, lost with its node, or else.
DEATHS = (RayActorError, OutOfMemoryError, NodeDiedError)
# What Ray's worker says, in an OSError without a number, where its node's raylet and object store end before it.
_STORE_GONE = (os.strerror(errno.EPIPE), os.strerror(errno.ECONNRESET), "End of file")
_NODE_LOST = ("node failure", "node was terminated", "its node has died")
# Between two looks at something else while calls are awaited.
MEANWHILE_SECONDS = 1.0
# How long Ray may take to notice a death.
DEATH_SECONDS = 5.0


def answer(call: ray.ObjectRef[Any], actor: str, phase: str, timeout: float | None) -> Any:
    """The result of one actor call, waited for at most `timeout` seconds (None: the caller keeps the deadline).

    Raises:
        ActorDied: the process behind the call, or the node that held its answer, is gone.
        DeadlineExceeded: no result in time.
        RLTrainError: what the actor itself said, or what it failed with.
    """
    try:
        return ray.get(call, timeout=timeout)
    except GetTimeoutError:
        raise no_answer(actor, phase, timeout or 0.0) from None
    except DEATHS as error:
        raise _death(error, actor, phase) from error
    except RayTaskError as error:
        if isinstance(error.cause, RLTrainError):
            raise error.cause from None
        if isinstance(error.cause, RayError) or _store_gone(error.cause):
            raise _lost(error.cause, actor, phase) from error
        raise RLTrainError(
            f"{actor} failed while {phase}: {_one_line(error.cause)}; --debug shows the traceback"
        ) from error
    except RayError as error:
        raise _lost(error, actor, phase) from error


def no_answer(actor: str, phase: str, timeout: float) -> DeadlineExceeded:
    """What is said where `actor` has not answered in so many seconds."""
    return DeadlineExceeded(
        f"{actor}: no answer after {timeout:.0f} s while {phase}; look for a node that is overloaded, out of memory "
        f"or unreachable, then {RESUME_HINT}"
    )


def check_alive(watch: Watch, actors: Collection[str], phase: str) -> None:
    """Raises DeadlineExceeded where one of `actors` gives no sign of life."""
    for actor in sorted(watch.look() & set(actors)):
        raise DeadlineExceeded(watch.silence(actor, phase))


def raise_death(
    pending: Sequence[ray.ObjectRef[Any]], names: Mapping[ray.ObjectRef[Any], str], phase: str
) -> None:
    """One actor has failed: perhaps because another died, which Ray may notice a moment later. That is the reason then."""
    done = ray.wait(pending, num_returns=len(pending), timeout=DEATH_SECONDS)[0] if pending else []
    for call in done:
        try:
            ray.get(call, timeout=0)
        except DEATHS as error:
            raise _death(error, names[call], phase) from error
        except RayError:  # failed, not ended, or cut off as well
            continue


def _death(error: RayError, actor: str, phase: str) -> RLTrainError:
    died = ActorDied(f"{actor} died while {phase}: {_why(error)}; {RESUME_HINT}")
    return _said_at_its_start(error) or died


def _lost(error: BaseException, actor: str, phase: str) -> ActorDied:
    """What it needed or answered went with the process or the node that held it, or Ray itself is going."""
    return ActorDied(
        f"{actor} was cut off while {phase}: Ray lost an object or a process of its own ({type(error).__name__}); "
        f"{RESUME_HINT}"
    )


def _store_gone(error: BaseException) -> bool:
    """Whether a process could no longer reach the store of its node: it ends a moment later itself. Errors of the system's
    own calls, a file's or a user's socket's, have a number."""
    return isinstance(error, OSError) and error.errno is None and str(error) in _STORE_GONE


def _said_at_its_start(error: RayError) -> RLTrainError | None:
    """The sentence that an actor's constructor gave up with: of that Ray keeps the traceback's text alone."""
    if not getattr(error, "actor_init_failed", False):
        return None
    name, _, sentence = str(error).strip().splitlines()[-1].partition(": ")
    module, _, kind = name.rpartition(".")
    found = getattr(errors, kind, None) if module == errors.__name__ else None
    return found(sentence) if isinstance(found, type) and issubclass(found, RLTrainError) else None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 400 else f'{text[:400]} ...'}"


def _why(error: RayError) -> str:
    """In a few words. (Of any process that vanished, Ray says that it may have been the kernel's OOM killer.)"""
    text = str(error).lower()
    if isinstance(error, OutOfMemoryError) or "running low on memory" in text or "memory monitor" in text:
        return "the node ran out of memory"
    if isinstance(error, NodeDiedError) or any(words in text for words in _NODE_LOST):
        return "its node was lost"
    return "its process was killed (by the system when memory ran out, or by somebody) or crashed"
