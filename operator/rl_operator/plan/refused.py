"""Why a run cannot be carried out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rl_api.paths import render_path
from rl_api.problems import Problem
from rl_api.profile import ProfileLimitsSpec

NO_LIMITS: Final = ProfileLimitsSpec()
_LONGEST_MESSAGE: Final = 2000


@dataclass(frozen=True)
class Refused:
    """A run that cannot be carried out."""

    reason: str
    """One word: InvalidSpec, ProfileMissing, ProfileInvalid, NotAllowed, LimitExceeded or Unsupported."""
    message: str
    """A sentence for each thing that is wrong."""
    profile_name: str | None = None
    """Name of the profile; None: there is none, or it is the built-in one."""
    limits: ProfileLimitsSpec = NO_LIMITS
    """Limits of the profile: they hold for what the run has begun with."""

    @classmethod
    def because(cls, reason: str, problems: Iterable[Problem], about: str = "", ask: str = "") -> Refused:
        """All problems, of `about`, as one message of bounded length, at whose end stands whom to ask."""
        texts = [f"{render_path(problem.path)}: {problem.sentence}" for problem in problems]
        message = "; ".join(texts)
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[: _LONGEST_MESSAGE - 30]}... ({len(texts)} problems)"
        return cls(reason, f"{about}{message}{'. ' if ask else ''}{ask}")
