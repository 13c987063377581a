"""How long the answers of a simulated run are. Pure."""

from __future__ import annotations

import random

from rl_api.planner.profile import RunProfile
from rl_api.planner.rollout import spread


class AnswerLengths:
    """Tokens of each answer of each group, which stay the same however often they are asked for."""

    def __init__(self, profile: RunProfile, seed: int, answers: int) -> None:
        """`seed`: of the order in which long and short answers come. `answers`: of a step of the run that this
        one stands for: the longest is as long as that of so many."""
        self.profile, self.seed, self.answers = profile, seed, answers
        self.steps: dict[int, list[int]] = {}

    def of(self, group: int) -> list[int]:
        """Of a group's answers; groups are numbered through all steps."""
        size = self.profile.group_size
        step, position = divmod(group, self.profile.prompts_per_step)
        if step not in self.steps:
            count = self.profile.answers
            drawn = spread(self.profile.lengths, count, 1 - 0.5 / self.answers)
            random.Random(self.seed * 1_000_003 + step).shuffle(drawn)
            self.steps[step] = drawn
        return self.steps[step][position * size : (position + 1) * size]

    def tokens(self, groups: list[int]) -> float:
        """Prompt and answer tokens of these groups."""
        prompts = self.profile.group_size * self.profile.prompt_tokens
        return sum(sum(self.of(group)) + prompts for group in groups)

    def forget(self, step: int) -> None:
        """Nobody asks for a step's groups any more."""
        self.steps.pop(step, None)
