"""The batch that both sides of `learner.py` train on; no import beyond the standard library."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

GROUPS, GROUP_SIZE = 8, 8
VOCABULARY = 98
LONGEST = 1024


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens: prompts even between two bounds, answers log-normal around a median.

    `sigma` 0: all answers have the median's length.
    """

    name: str
    prompt: tuple[int, int]
    median: int
    sigma: float
    wanted: float | None = None


SHAPES = (
    Shape("long tail", (16, 64), 80, 1.0, wanted=2.0),
    Shape("long tail, long prompts", (200, 400), 80, 1.0, wanted=2.0),
    Shape("equal lengths", (40, 40), 160, 0.0),
)


def make(shape: Shape, seed: int = 0) -> dict[str, Any]:
    """Groups of answers to one prompt each: `prompts`, `completions` (token ids) and `advantages`, sequence by sequence."""
    generator = random.Random(seed)
    prompts: list[list[int]] = []
    completions: list[list[int]] = []
    for _ in range(GROUPS):
        prompt = _tokens(generator, generator.randint(*shape.prompt))
        for _ in range(GROUP_SIZE):
            length = max(4, round(generator.lognormvariate(0.0, shape.sigma) * shape.median))
            prompts.append(prompt)
            completions.append(_tokens(generator, min(length, LONGEST - len(prompt))))
    advantages = [generator.gauss(0.0, 1.0) for _ in prompts]
    return {"prompts": prompts, "completions": completions, "advantages": advantages}


def _tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(2, VOCABULARY) for _ in range(count)]
