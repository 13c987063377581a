"""Published seconds per step of other systems, and what the planner's costs and simulator say of them.

Of each table some rows calibrate a profile (seconds of decoding and of learning), the others are predicted from it. No row
is tuned by itself. What tables do not say is assumed once for all: lengths are log-normal (sigma 0.7) with the published
mean, cut at the published limit; a decode step takes base (1 + 0.008 active); learning is in proportion to tokens over ranks
but for what two calibrating rows say stays.

Sources: verl's documentation of fully_async and one_step_off; RLinf's blog against verl; RLinf's paper as the source
document tells of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from rl_api.planner.admission import Admission
from rl_api.planner.placement import Placement
from rl_api.planner.plan import predict
from rl_api.planner.profile import DecodeProfile, LearnerProfile, RunProfile
from rl_api.planner.proportion import in_proportion
from rl_api.planner.rollout import Rollout
from rl_api.planner.search import Stage, search, words
from rl_api.planner.simulator import simulate

SIGMA = 0.7
PER_ACTIVE = 0.008
"""Of a decode step's base, for each active sequence."""


@dataclass(frozen=True)
class Row:
    """One published figure; `calibrates`: the profile was made so that it comes out."""

    source: str
    what: str
    published: float
    predicted: float
    calibrates: bool = False

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what is published."""
        return self.predicted / self.published - 1


def lengths(mean: float, limit: int, count: int = 1024, sigma: float = SIGMA) -> tuple[int, ...]:
    """Log-normal lengths cut at `limit` whose mean is `mean`."""
    normal = NormalDist()
    scores = [normal.inv_cdf((index + 0.5) / count) for index in range(count)]

    def drawn(mu: float) -> list[int]:
        return [min(limit, max(1, round(math.exp(mu + sigma * score)))) for score in scores]

    return tuple(drawn(_solve(lambda mu: sum(drawn(mu)) / count, mean, 0.0, 20.0)))


def _solve(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a rising function is `target`."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return (low + high) / 2


def calibrated(profile: RunProfile, samplers: int, seconds: float) -> RunProfile:
    """The profile whose rollout takes `seconds` on `samplers`: a longer or shorter decode step."""
    now = Rollout(profile, in_order=False).curve(samplers).seconds
    decode = profile.decode
    update = {"base": decode.base * seconds / now, "per_active": decode.per_active * seconds / now}
    return profile.model_copy(update={"decode": decode.model_copy(update=update)})


def profile_of(
    mean: float,
    limit: int,
    group: int,
    prompts: int,
    *,
    learning: float,
    ranks: int,
    alpha: float = 0.0,
    sigma: float = SIGMA,
) -> RunProfile:
    """A profile whose step's learning takes `learning` seconds on `ranks`, `alpha` of them whatever the ranks are."""
    drawn = lengths(mean, limit, sigma=sigma)
    tokens = group * prompts * sum(drawn) / len(drawn)
    return RunProfile(
        group_size=group,
        prompts_per_step=prompts,
        decode=DecodeProfile(base=0.01, per_active=0.01 * PER_ACTIVE, slots=256),
        lengths=drawn,
        limit=limit,
        # What does not shrink with ranks is once a step.
        learner=LearnerProfile(beta=(learning - alpha) * ranks / tokens, all_reduce=alpha),
    )


def on_fewer(profile: RunProfile, ranks: int, whole: int) -> RunProfile:
    """The profile where learners have `ranks` of `whole` cards, by RLinf's published rule: fewer are better used, each by
    1 + whole / ranks / 10, at least 1.1 and at most 1.9."""
    learner = profile.learner
    better = 1 + min(0.9, max(0.1, whole / ranks / 10))
    return profile.model_copy(update={"learner": learner.model_copy(update={"beta": learner.beta / better})})


def simulated(profile: RunProfile, placement: Placement, staleness: float = 0.0, steps: int = 4) -> float:
    """Seconds of a step, groups in whatever order they are ready."""
    small, placed, fewer = in_proportion(profile, placement)
    queue = Admission(small.prompts_per_step, placed.samplers, staleness, in_order=False)
    return simulate(small, placed, steps=steps, queue=queue, fewer=fewer).step_seconds


def reasoning_7b(reference: float = 20.7, sigma: float = SIGMA) -> RunProfile:
    """verl's 7B on 64 cards: 4,096 answers of 10,426 tokens; 317 s of rollout, 73 of training, 21.6 and `reference` of
    passes for log-probabilities."""
    learning = 21.6 + reference + 73.0
    profile = profile_of(10_426, 27_648, 8, 512, learning=learning, ranks=64, sigma=sigma)
    return calibrated(profile, 64, 317.0)


TOGETHER = Placement(64, 64, 64, 512)
"""Collocated on 64 cards; apart 40 of them roll out, and 24 learn."""


def ahead(profile: RunProfile, part: int, *, rule: bool = False, staleness: float = 0.0) -> float:
    """Collocated over disaggregated seconds of a step: above 1 disaggregated is ahead. `rule`: fewer learners are better
    used, as RLinf's rule has it."""
    together = predict(profile, TOGETHER, in_order=False).step_seconds
    learners = on_fewer(profile, 24, 64) if rule else profile
    return together / simulated(learners, Placement(24, 40, 0, part), staleness, steps=8 if staleness else 4)


@dataclass(frozen=True)
class Change:
    """One setting more between the two figures that contradict each other, and who is ahead then (`ahead`)."""

    what: str
    ahead: float
    published: str = ""


@cache
def regimes(sigma: float = SIGMA) -> tuple[Change, ...]:
    """From the one figure to the other, one change after the other.

    A step behind learners are beside "the new rollout", as the source document says of the figure; that is either the rest
    of their own step's, which is what parts are, or the next step's.
    """
    own = reasoning_7b(reference=0.0, sigma=sigma)
    return (
        Change(
            "verl's step, the whole of it one part", ahead(reasoning_7b(sigma=sigma), 512), "0.59 to 0.69"
        ),
        Change("without the reference pass", ahead(own, 512)),
        Change("in parts of 8 groups, beside the rest of their own step's rollout", ahead(own, 8)),
        Change("and fewer learners better used, by RLinf's rule", ahead(own, 8, rule=True)),
        Change("and in parts of one group", ahead(own, 1, rule=True)),
        Change(
            "instead of these three: the whole step one part, beside the next step's rollout",
            ahead(own, 512, staleness=1.0),
            "1.17 to 1.21",
        ),
    )


def rlinf_rows() -> Iterator[Row]:
    """Rollout on fewer cards, and what two figures say of disaggregated that contradict each other."""
    profile = reasoning_7b()
    seconds = predict(profile, TOGETHER, in_order=False).step_seconds
    yield Row("verl, 7B on 64", "collocated, s", 447.0, seconds, calibrates=True)
    rollout, source = Rollout(profile, in_order=False), "RLinf, 7B on 64"
    more = rollout.curve(40).seconds / rollout.curve(64).seconds
    yield Row(source, "rollout on 40 of 64 over 64", 1.14, more)
    whole, _, _, parts, _, behind = (change.ahead for change in regimes())
    yield Row(source, "collocated over disaggregated in parts of 8 groups", 1.19, parts)
    yield Row(source, "collocated over disaggregated, learning beside the next rollout", 1.19, behind)
    yield Row(source, "disaggregated in one part over verl's collocated", 1.56, 1 / whole)


def fully_async_rows() -> Iterator[Row]:
    """verl's fully asynchronous trainer, 7B on H20: 512 prompts of 16 a version, parts of 128 prompts.

    Learning calibrated on update_actor of 16 and 64 ranks, rollout on the row of 64 samplers without staleness.
    """
    source = "verl, fully async 7B"
    # 313.81 = alpha + beta / 16, 98.77 = alpha + beta / 64 (the row without staleness).
    beta = (313.81 - 98.77) / (1 / 16 - 1 / 64)
    alpha = 313.81 - beta / 16
    base = profile_of(3_500, 28_000, 16, 512, learning=98.77, ranks=64, alpha=alpha)

    def step(scale: float, samplers: int, ranks: int, staleness: float) -> float:
        profile = calibrated(base, 64, scale)
        return simulated(profile, Placement(ranks, samplers, 0, 128), staleness, steps=8)

    scale = _solve(lambda seconds: step(seconds, 64, 64, 0.0), 231.34, 50.0, 400.0)
    yield Row(source, "64 + 64, staleness 0, s", 231.34, step(scale, 64, 64, 0.0), calibrates=True)
    for staleness, published in ((0.1, 171.30), (0.3, 146.11), (0.5, 150.63)):
        yield Row(source, f"64 + 64, staleness {staleness}, s", published, step(scale, 64, 64, staleness))
    for count, published in ((32, 189.26), (16, 294.77)):
        yield Row(source, f"{count} + {count}, staleness 0.5, s", published, step(scale, count, count, 0.5))


def one_step_off_rows() -> Iterator[Row]:
    """verl's one-step-off trainer, 7B: collocated on 16 calibrates, 4 + 12 one step off is predicted."""
    for engine, generate, rest, learning, limit, step, apart in (
        ("FSDP2", 247.0, 321.0 - 247.0, 88.0 + 286.0, 20_480, 749.0, 520.0),
        ("Megatron", 162.0, 207.0 - 162.0, 119.0 + 344.0, 8_192, 699.0, 566.0),
    ):
        source = f"verl, one step off, {engine}"
        profile = calibrated(profile_of(limit / 8, limit, 16, 512, learning=learning, ranks=16), 16, generate)
        profile = profile.model_copy(update={"publish_seconds": step - generate - rest - learning})
        together = predict(profile, Placement(16, 16, 16, 512), in_order=False).step_seconds + rest
        yield Row(source, "collocated on 16, s", step, together, calibrates=True)
        yield Row(source, "4 + 12, s", apart, simulated(profile, Placement(12, 4, 0, 512), 1.0, steps=6))


def scaling_rows() -> Iterator[Row]:
    """verl's collocated runs of 7B on H20: those on 64 and 128 from that on 32."""
    source = "verl, collocated 7B"
    profile = calibrated(
        profile_of(3_500, 28_000, 16, 512, learning=107.71 + 269.80, ranks=32), 32, 357.41
    ).model_copy(update={"publish_seconds": 790.10 - 357.41 - 107.71 - 269.80})
    for count, published in ((32, 790.10), (64, 365.28), (128, 356.30)):
        seconds = predict(profile, Placement(count, count, count, 512), in_order=False).step_seconds
        yield Row(source, f"on {count}, s", published, seconds, calibrates=count == 32)


@cache
def all_rows() -> tuple[Row, ...]:
    """All figures that are replayed."""
    return (*rlinf_rows(), *fully_async_rows(), *one_step_off_rows(), *scaling_rows())


def spatial_over_temporal(
    generate: float, learn: float, counts: tuple[int, ...], base: int, switch: float = 0.0
) -> list[float]:
    """Gain of the best split in parts of 8 groups over collocated on more and more cards, from a step's times on `base`."""
    profile = calibrated(profile_of(8_000, 27_648, 8, 512, learning=learn, ranks=base), base, generate)
    found = []
    for count in counts:
        together = predict(profile, Placement(count, count, count, 512), in_order=False).step_seconds + switch
        apart = []
        for share in (1, 2, 3, 4, 5):
            ranks = count * share // 8
            fewer = on_fewer(profile, ranks, count)
            apart.append(predict(fewer, Placement(ranks, count - ranks, 0, 8), False).step_seconds)
        found.append(together / min(apart) - 1)
    return found


def embodied(cpu_bound: bool) -> str:
    """The best way to run environments, policy and training on 4 cards, for people.

    Environments on GPUs (ManiSkill) take hardly longer for more of them on a card: 0.8 s for 10, 0.85 s for 40 a step. Those
    on CPUs (LIBERO) get as many cores as cards, and take in proportion: 18.5 s for 64. The policy takes 0.12 s for each
    environment of a card, which no table says. A trajectory of 40 environments is 80 steps; two halves of them take turns.
    """
    counts, steps, half = (1, 2, 3, 4), 80, 20

    def environment(count: int, envs: int) -> float:
        return 18.5 * envs / count / 64 if cpu_bound else 0.783 + 0.00167 * envs / count

    def policy(count: int, envs: int) -> float:
        return 0.12 * envs / count

    stages = [
        Stage(
            name,
            {count: steps * seconds(count, 2 * half) for count in counts},
            {count: (seconds(count, half), seconds(count, half)) for count in counts},
        )
        for name, seconds in (("environment", environment), ("policy", policy))
    ]
    stages.append(Stage("training", {count: 120.0 / count for count in counts}))
    return words(search(stages, 4, 2 * steps).best[0].made)
