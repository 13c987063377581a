"""A group that a sampler has under way: one prompt and its members, as far as they are. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rl_api.errors import RLTrainError
from rl_trainer.rollout.engines.base import SamplingParams
from rl_trainer.tasks import Prompt, Score
from rl_trainer.tasks.environments.episode import Episode
from rl_trainer.trajectory import Trajectory


@dataclass
class Member:
    """One trajectory under way: `tokens` and `sampled` grow together, `logprobs` and `versions` with sampled ones.

    `begun`: tokens of the turn under way that an engine had sampled before the one that goes on with it.
    """

    seed: int
    tokens: list[int]
    sampled: list[bool]
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    turns: int = 0
    truncated: bool = False
    environment: Episode | None = None
    text: str = ""
    score: Score | None = None


@dataclass
class Waits:
    """How many there were, and their seconds all together."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.seconds += seconds


@dataclass
class GroupRollout:
    """All members of one prompt; `key` is whatever the caller started it with."""

    key: object
    prompt: Prompt
    params: SamplingParams
    members: list[Member]
    started: float
    open_members: int
    tool_seconds: float = 0.0  # that its members waited for their environments, all together
    waited: Waits = field(default_factory=Waits)  # of these those for answers of workers

    def waited_for(self, seconds: float) -> None:
        """A member has waited for a worker's answer."""
        self.tool_seconds += seconds
        self.waited.add(seconds)

    def trajectories(self) -> list[Trajectory]:
        """The members, as far as they are."""
        return [
            Trajectory(
                tokens=np.asarray(member.tokens, dtype=np.int32),
                mask=np.asarray(member.sampled, dtype=np.bool_),
                log_probs=np.asarray(member.logprobs, dtype=np.float32),
                versions=np.asarray(member.versions, dtype=np.int32),
                reward=member.score.reward if member.score is not None else 0.0,
                truncated=member.truncated,
            )
            for member in self.members
        ]

    @property
    def oldest_version(self) -> int | None:
        """Of the weights that sampled a token of it; None: there is none yet."""
        return min((min(member.versions) for member in self.members if member.versions), default=None)


@dataclass(frozen=True)
class GroupFailure:
    """A group that was given up because its reward or environment failed."""

    key: object
    error: RLTrainError
