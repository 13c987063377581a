"""RLinf's published rule for placing a chain of stages, written anew from its description, to be held against ours.

Of n devices, a stage that takes c seconds of a batch of M groups on all of them takes on g, with s = n / g,
    training, inference   c s / (1 + min(0.9, max(0.1, s / 10)))
    rollout               c where g / tp x q >= M x group size (q: sequences at once, 0.9 of them from 128 on), else c s
Collocated stages take the sum; on parts of the devices first groups pass all stages, then the slowest one decides:
    total = w_source + w_sink + max(c_source, c_sink) (M - 1) / M,   w: seconds of a group
A chain is cut in two in every way, and so are the halves; stages that share devices beside others that do not are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from rl_api.planner.search import Stage


@dataclass(frozen=True)
class RuleStage:
    """A stage as the rule knows it: seconds of a group on each number of devices that exists for it."""

    name: str
    group: Mapping[int, float]


def scaled(seconds: float, devices: int, count: int) -> float:
    """What training and inference take on `count` of `devices`."""
    if count == devices:
        return seconds
    scale = devices / count
    return seconds * scale / (1 + min(0.9, max(0.1, scale / 10)))


def rollout(
    seconds: float, devices: int, count: int, *, answers: int, at_once: int, tensor: int = 1
) -> float:
    """What rollout takes on `count` of `devices`."""
    if count == devices:
        return seconds
    free = math.ceil(at_once * (0.9 if at_once >= 128 else 1))
    return seconds if count // tensor * free >= answers else seconds * devices / count


def rule(stages: Sequence[RuleStage], devices: int, groups: int) -> tuple[float, dict[str, int]]:
    """Seconds of a step of `groups`, and the devices of each stage."""

    @cache
    def best(begin: int, end: int, count: int) -> tuple[float, float, float, dict[str, int]] | None:
        """Total, seconds of a group where it is slowest, of its first group, and devices."""
        if end - begin == 1:
            group = stages[begin].group.get(count)
            return None if group is None else (group * groups, group, group, {stages[begin].name: count})
        found = []
        for cut in range(begin + 1, end):
            # A split of what is left would share devices beside it: collocated is all of the chain or nothing of it.
            for own in range(1, count):
                source, sink = best(begin, cut, own), best(cut, end, count - own)
                if source is not None and sink is not None:
                    warm, slowest = source[2] + sink[2], max(source[1], sink[1])
                    found.append((warm + slowest * (groups - 1), slowest, warm, {**source[3], **sink[3]}))
        return min(found, key=lambda one: one[0], default=None)

    options = [
        (sum(stage.group[devices] for stage in stages) * groups, {stage.name: devices for stage in stages})
    ]
    split = best(0, len(stages), devices)
    if split is not None:
        options.append((split[0], split[3]))
    return min(options, key=lambda one: one[0])


def as_stages(stages: Sequence[RuleStage], groups: int, switch: float = 0.0) -> list[Stage]:
    """The same costs for our search, a part being a group."""
    return [
        Stage(
            stage.name,
            {count: seconds * groups for count, seconds in stage.group.items()},
            {count: (seconds, seconds) for count, seconds in stage.group.items()},
            switch=switch,
            hands_over=index == 0,
        )
        for index, stage in enumerate(stages)
    ]
