"""What an error says: something of the policy, or only of where it was to be read, measured or loaded. Pure."""

from __future__ import annotations

from typing import Final

from rl_api.errors import DeadlineExceeded, ModelUnavailable, Unavailable

_OF_PLACES: Final = (DeadlineExceeded, Unavailable, ModelUnavailable, OSError)


def passes(error: BaseException) -> bool:
    """Whether another try may go well with the same policy: no disk, bucket or process is a verdict about it."""
    return any(_is_of_a_place(one) for one in (error, error.__cause__) if one is not None)


def _is_of_a_place(error: BaseException) -> bool:
    """Those of Ray by where they are made: it is not for all that use this."""
    return isinstance(error, _OF_PLACES) or type(error).__module__.partition(".")[0] == "ray"
