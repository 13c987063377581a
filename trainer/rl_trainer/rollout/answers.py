"""Which answers to held-out prompts count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rl_api.errors import RewardError
from rl_trainer.tasks import Answer


def scored(answers: Sequence[Answer], warn: Callable[[str], None]) -> list[Answer]:
    """Those that have a score; `warn` is told of others.

    Raises:
        RewardError: none has.
    """
    errors = [one.error for one in answers if one.error is not None]
    if errors:
        if len(errors) == len(answers):
            raise RewardError(f"no held-out prompt has a score: {errors[0]}")
        warn(f"{len(errors)} of {len(answers)} held-out prompts are left out of the evaluation: {errors[0]}")
    return [one for one in answers if one.error is None]
