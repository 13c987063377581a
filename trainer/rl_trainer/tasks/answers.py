"""What comes back from other people's code: plain values, a StepResult, or why there is no value. Pure.

It is read in processes that hold tokens and credentials, and written in one that may do anything. So it is JSON, of which
nothing but these can be made: no pickle, which runs what it names.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from rl_api.errors import RewardError, RLTrainError, TaskError
from rl_trainer.tasks.types import StepResult

MOST_BYTES: Final = 16 * 2**20
"""Of one answer."""

_DEEPEST: Final = 100
_LONGEST_SENTENCE: Final = 16_384
_MOST_ODD_KEYS: Final = 1000
"""Of a set or dict, where they are no text: whoever chooses numbers can choose such that all have the same hash."""


class CallError(Exception):
    """The call has given no result. `text`: why, to be put after the name of what was called."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class LostError(CallError):
    """The process that held the object has been replaced: what the call was about is to be made again there.

    `begun`: whether it was answering this call, which may be what has ended it.
    """

    def __init__(self, begun: bool = True) -> None:
        super().__init__("has lost its process")
        self.begun = begun


_ERRORS: Final[Mapping[str, type[CallError] | type[RLTrainError]]] = {
    one.__name__: one for one in (CallError, TaskError, RewardError)
}


class Failure:
    """The answer to a call that has failed. Any other error of ours becomes a CallError on its way."""

    def __init__(self, error: CallError | RLTrainError) -> None:
        self.error = error


def encode(value: Any) -> bytes:
    """An answer as bytes.

    Values are None, truth values, numbers, text, bytes, lists, tuples, sets and dicts of such, a StepResult without a score,
    and a Failure; of a type derived from one of these only that remains.

    Raises:
        ValueError: it is or holds something else, nests deeper than 100 levels or takes more than 16 MiB.
    """
    data = json.dumps(_written(value, 0)).encode()
    if len(data) > MOST_BYTES:
        raise ValueError(f"it takes {len(data)} bytes, allowed: at most {MOST_BYTES}")
    return data


def decode(data: bytes) -> Any:
    """The value that `encode` has made bytes of. Raises ValueError for all other bytes."""
    try:
        return _read(json.loads(data), 0)
    except RecursionError:
        raise ValueError(f"it nests deeper than {_DEEPEST} levels") from None
    except (TypeError, OverflowError) as error:  # what cannot be a key, a reward of 400 digits
        raise ValueError(str(error)) from None


def _written(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"it nests deeper than {_DEEPEST} levels")
    inner = depth + 1
    match value:
        case None | bool():
            return value
        # What is derived from them may say anything else of itself.
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str.__str__(value)
        case bytes() | bytearray():
            return {"bytes": base64.b64encode(value).decode()}
        case StepResult():
            return {"step": [value.observation, value.reward, value.done, value.delay_seconds]}
        case Failure():
            name = type(value.error).__name__
            return {"failure": [name if name in _ERRORS else "CallError", str(value.error)]}
        case list():
            return [_written(one, inner) for one in value]
        case tuple():
            return {"tuple": [_written(one, inner) for one in value]}
        case set() | frozenset():
            return {"set": [_written(one, inner) for one in value]}
        case Mapping():
            return {"dict": [[_written(key, inner), _written(one, inner)] for key, one in value.items()]}
    raise ValueError(
        f"{type(value).__name__}, allowed: numbers, text, bytes, None, and lists, tuples, sets and dicts of these"
    )


def _read(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"it nests deeper than {_DEEPEST} levels")
    inner = depth + 1
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_read(one, inner) for one in value]
        case {"bytes": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"tuple": list(parts), **rest} if not rest:
            return tuple(_read(one, inner) for one in parts)
        case {"set": list(parts), **rest} if not rest:
            return set(_keys([_read(one, inner) for one in parts]))
        case {"dict": list(parts), **rest} if not rest:
            if not all(isinstance(one, list) and len(one) == 2 for one in parts):
                raise ValueError("a dict whose items are no pairs")
            keys = _keys([_read(key, inner) for key, _ in parts])
            return dict(zip(keys, (_read(one, inner) for _, one in parts), strict=True))
        case {
            "step": [str(said), int() | float() as reward, bool(done), int() | float() as delay],
            **rest,
        } if not rest:
            if not (math.isfinite(reward) and math.isfinite(delay) and delay >= 0):
                raise ValueError("a StepResult whose reward or delay_seconds is no finite number")
            return StepResult(said, float(reward), done, float(delay))
        case {"failure": [str(name), str(text)], **rest} if not rest and name in _ERRORS:
            return Failure(_ERRORS[name](text[:_LONGEST_SENTENCE]))
    raise ValueError(f"{json.dumps(value):.60}, which is no answer")


def _keys(found: list[Any]) -> list[Any]:
    if sum(not isinstance(one, str) for one in found) > _MOST_ODD_KEYS:
        raise ValueError(f"a set or dict with more than {_MOST_ODD_KEYS} keys that are no text")
    return found
