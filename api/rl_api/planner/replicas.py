"""How many workers of a task - models that score, simulators - a placement has work for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rl_api.planner.profile import RunProfile
from rl_api.planner.stations import JUDGE, SIMULATOR, station_seconds, with_workers, workers_of

WORTH: Final = 0.05
"""Share of a step that other workers must save, or may cost, for a sentence."""

FIELDS: Final = {JUDGE: "task.rewardModel.replicas", SIMULATOR: "task.simulators.replicas"}
"""By kind the field that says how many there are."""


def other_replicas(
    profile: RunProfile, predicted: Callable[[RunProfile], float], text: Callable[[float], str]
) -> tuple[str, ...]:
    """What more workers of a kind would save, or that fewer would do, a sentence each; nothing where their number is right.

    `predicted`: seconds of a step by such a profile; `text`: seconds for people.
    """
    found = (_sentence(profile, kind, predicted, text) for kind in FIELDS)
    return tuple(one for one in found if one is not None)


def _sentence(
    profile: RunProfile, kind: str, predicted: Callable[[RunProfile], float], text: Callable[[float], str]
) -> str | None:
    count, most = workers_of(profile, kind), profile.answers
    if not count or not station_seconds(profile, kind):
        return None

    def seconds(workers: int) -> float:
        return predicted(with_workers(profile, kind, workers))

    now, fastest = seconds(count), seconds(max(count, most))
    if fastest <= now * (1 - WORTH):
        wanted = _least(count, most, lambda one: seconds(one) <= fastest * (1 + WORTH))
        then = seconds(wanted)
        return (
            f"{kind}s limit: with {wanted} in place of {count} ({FIELDS[kind]}) a step would take {text(then)} "
            f"({then / now - 1:+.0%})"
        )
    enough = _least(0, count, lambda one: seconds(one) <= now * (1 + WORTH))
    if enough < count:
        return f"{kind}s wait for work: {enough} in place of {count} ({FIELDS[kind]}) would do"
    return None


def _least(too_few: int, enough: int, does: Callable[[int], bool]) -> int:
    """The least number above `too_few` that does, as `enough` does and all above it."""
    step = 1
    while too_few + step < enough:  # by and by, as the number looked for is near the one there is
        if does(too_few + step):
            enough = too_few + step
        else:
            too_few, step = too_few + step, 2 * step
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if does(middle) else (middle, enough)
    return enough
