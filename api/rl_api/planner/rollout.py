"""How long samplers take for the answers of a step, by how many there are: a decode step of each in virtual time. Pure.

Answers differ a lot in length, and a step ends with its longest. So times are not divided by the number of samplers: one
sampler decodes its share of the step in virtual time, admitting a sequence whenever a slot is free, each decode step taking
base + perActive x active + perCachedToken x cached (`DecodeProfile`). Between two answers' ends the number of active
sequences stays, and k decode steps take

    k (base + perActive n) + perCachedToken (k cached + n k (k - 1) / 2)

seconds for n active sequences, so that an answer costs one event however long it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rl_api.planner.profile import DecodeProfile, RunProfile
from rl_api.planner.stations import Stations

MOST_SEQUENCES = 512
"""Sequences that stand for all of a step: of more, that many quantiles are decoded, with slots in proportion."""

_LEAST_SLOTS = 8
"""Slots of a sampler that stands for a larger one."""


def spread(lengths: Sequence[int], count: int, longest: float = 1.0) -> list[int]:
    """`count` lengths at even quantiles of `lengths`, long and short ones mixed, the same each time.

    `longest`: quantile of the longest among them, where they stand for more answers than `count`; 1: the longest there is.
    """
    ordered = sorted(lengths)
    size = len(ordered)
    drawn = [ordered[min(size - 1, int((index + 0.5) / count * size))] for index in range(count)]
    drawn[-1] = ordered[min(size - 1, int(longest * size))]
    stride = _stride(count)
    return [drawn[index * stride % count] for index in range(count)]


def _stride(count: int) -> int:
    """Near the golden section of `count`, without a common divisor: its multiples visit all, far from each other."""
    stride = max(1, round(count * 0.618))
    while _common(stride, count) != 1:
        stride += 1
    return stride


def _common(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


@dataclass(frozen=True)
class Decoded:
    """What one sampler did: seconds at which each sequence began and ended."""

    starts: list[float]
    ends: list[float]


def decode(
    lengths: Sequence[int],
    model: DecodeProfile,
    prompts: Sequence[float],
    prefill: float | None,
    slots: float,
    score: float = 0.0,
) -> Decoded:
    """One sampler decodes sequences in this order, `slots` at once.

    Args:
        lengths: tokens to be decoded, of each.
        model: seconds of a decode step.
        prompts: tokens that each has in the cache before.
        prefill: tokens per second in which these are read; None: in no time.
        slots: >= 1.
        score: seconds that the sampler scores each that has ended, and does nothing else.
    """
    room, count = max(1, int(slots)), len(lengths)
    ends, starts = [0.0] * count, [0.0] * count
    active: list[tuple[int, int]] = []  # decode step at which it ends, which
    seconds, done, cached, coming = 0.0, 0, 0.0, 0
    base, each, token = model.base, model.per_active, model.per_cached_token
    while active or coming < count:
        while len(active) < room and coming < count:
            if prefill is not None:
                seconds += prompts[coming] / prefill
            starts[coming] = seconds
            cached += prompts[coming]
            heapq.heappush(active, (done + max(1, lengths[coming]), coming))
            coming += 1
        step, n = active[0][0], len(active)
        k = step - done
        seconds += k * (base + each * n) + token * (k * cached + n * k * (k - 1) / 2)
        cached += n * k
        done = step
        while active and active[0][0] == step:
            _, which = heapq.heappop(active)
            seconds += score
            ends[which] = seconds
            cached -= prompts[which] + max(1, lengths[which])
    return Decoded(starts, ends)


@dataclass(frozen=True)
class Curve:
    """When groups of a step are there, and what is left of answers then.

    Attributes:
        groups: seconds at which each of the groups that stand for all can be learned, ascending: it is scored, and where
            parts come in order all before it are.
        answers: of each answer that stands for others: seconds at which decoding began and ended, tokens.
    """

    groups: tuple[float, ...]
    answers: tuple[tuple[float, float, int], ...]

    @property
    def seconds(self) -> float:
        """Until the last is there."""
        return self.groups[-1]

    def until(self, share: float) -> float:
        """Seconds until `share` (> 0) of the groups are there."""
        count = len(self.groups)
        return self.groups[min(count - 1, max(0, -int(-share * count // 1) - 1))]

    def left(self, moment: float) -> list[tuple[int, float]]:
        """Of answers that have not ended `moment` seconds after the start: tokens to come, and tokens that are there."""
        found = []
        for start, end, length in self.answers:
            if end > moment:
                there = length * max(0.0, moment - start) / (end - start) if moment > start else 0.0
                found.append((max(1, round(length - there)), there))
        return found


class Rollout:
    """Generation of the steps of a profile, on any number of samplers. Results are kept."""

    def __init__(self, profile: RunProfile, in_order: bool | None = None) -> None:
        """`in_order`: whether parts of a step come in the order of prompts; None: under staleness 0, as in the buffer."""
        self.profile = profile
        self.in_order = profile.max_staleness == 0 if in_order is None else in_order
        self._curves: dict[int, Curve] = {}
        self._handed: dict[tuple[int, int, float], tuple[float, Curve]] = {}

    def curve(self, samplers: int) -> Curve:
        """A step that begins with nothing under way, its groups divided over `samplers` (>= 1)."""
        if samplers not in self._curves:
            self._curves[samplers] = self._decoded(samplers)
        return self._curves[samplers]

    def _decoded(self, samplers: int) -> Curve:
        profile = self.profile
        size = profile.group_size
        share = max(1, -(-profile.prompts_per_step // samplers))  # groups of the fullest sampler
        slots = float(profile.decode.slots)
        # Fewer groups stand for many where one sampler has more than are decoded here.
        fewer = max(1.0, min(share * size / MOST_SEQUENCES, slots / _LEAST_SLOTS))
        here = max(1, round(share / fewer))
        fewer = share / here
        model = profile.decode.model_copy(
            update={
                "per_active": profile.decode.per_active * fewer,
                "per_cached_token": profile.decode.per_cached_token * fewer,
            }
        )
        prefill = profile.prefill_tokens_per_second
        among = min(samplers, max(1, MOST_SEQUENCES // (here * size)), 8)
        lengths = spread(profile.lengths, among * here * size, 1 - 0.5 / profile.answers)
        ends = [0.0] * len(lengths)
        answers: list[tuple[float, float, int]] = []
        scoring = profile.score_seconds / size * fewer
        for one in range(among):
            own = lengths[one::among]
            prompts = [profile.prompt_tokens] * len(own)
            rate = None if prefill is None else prefill / fewer
            decoded = decode(own, model, prompts, rate, slots / fewer, scoring)
            answers += zip(decoded.starts, decoded.ends, own, strict=True)
            ends[one::among] = decoded.ends
        stations = Stations(profile, profile.answers / len(ends))
        for which in sorted(range(len(ends)), key=ends.__getitem__):
            ends[which] = stations.scored(ends[which])
        groups = [0.0] * (among * here)
        for one in range(among):
            scored = ends[one::among]
            # Prompts go round the samplers.
            groups[one::among] = [max(scored[at : at + size]) for at in range(0, len(scored), size)]
        return Curve(tuple(self._learnable(groups)), tuple(answers))

    def _learnable(self, groups: list[float]) -> list[float]:
        return list(accumulate(groups, max)) if self.in_order else sorted(groups)

    def steady(self, samplers: int) -> float:
        """Seconds of a step where samplers go on with the next one's prompts, so that none waits for the longest answer, nor
        for simulators and models that score (which `least_seconds` has).

        As many sequences are under way as staleness and slots allow: (1 + maxStaleness) steps' answers at most.
        """
        profile = self.profile
        most = profile.answers * (1 + profile.max_staleness) / samplers
        active = max(1.0, min(float(profile.decode.slots), most))
        # A sequence that is looked at at some moment is long, and half done.
        mean = profile.mean_length
        squares = sum(length * length for length in profile.lengths) / len(profile.lengths)
        cached = active * (profile.prompt_tokens + squares / max(1.0, mean) / 2)
        step = (
            profile.decode.base
            + profile.decode.per_active * active
            + profile.decode.per_cached_token * cached
        )
        seconds = profile.answers * mean / samplers / active * step
        if profile.prefill_tokens_per_second is not None:
            seconds += profile.answers * profile.prompt_tokens / samplers / profile.prefill_tokens_per_second
        return seconds + profile.prompts_per_step * profile.score_seconds / samplers

    def handed_over(self, samplers: int, others: int, share: float) -> tuple[float, Curve]:
        """A step in which `samplers` decode until `share` of its groups are there, and `others` (>= 1) of them go on with
        all that has not ended.

        Returns the moment, and when groups are there of the whole step.
        """
        key = (samplers, others, share)
        if key not in self._handed:
            self._handed[key] = self._hand_over(samplers, others, share)
        return self._handed[key]

    def _hand_over(self, samplers: int, others: int, share: float) -> tuple[float, Curve]:
        profile, whole = self.profile, self.curve(samplers)
        moment = whole.until(share)
        left = whole.left(moment)
        if not left or others >= samplers:
            return moment, whole
        # One of the others decodes a sequence for each that is left; each stands for so many of its own.
        each = profile.answers / len(whole.answers) / others
        model = profile.decode.model_copy(
            update={
                "per_active": profile.decode.per_active * each,
                "per_cached_token": profile.decode.per_cached_token * each,
            }
        )
        rate = profile.prefill_tokens_per_second
        decoded = decode(
            [tokens for tokens, _ in left],
            model,
            [profile.prompt_tokens + there for _, there in left],
            None if rate is None else rate / each,
            profile.decode.slots / each,
            score=profile.score_seconds / profile.group_size * each,
        )
        stations = Stations(profile, profile.answers / len(whole.answers))
        for end in sorted(end for _, end, _ in whole.answers if end <= moment):
            stations.scored(end)
        ends = sorted(stations.scored(moment + end) for end in sorted(decoded.ends))
        before = [end for end in whole.groups if end <= moment]
        after = len(whole.groups) - len(before)
        # Groups end with their slowest member: of the answers left those that are last in even strides.
        groups = [
            ends[min(len(ends) - 1, -(-len(ends) * (index + 1) // after) - 1)] for index in range(after)
        ]
        stride = _stride(after)
        groups = [groups[index * stride % after] for index in range(after)]
        return moment, Curve((*before, *self._learnable(groups)), whole.answers)
