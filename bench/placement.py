"""The planner's search against RLinf's published rule, under the same costs; and how long it takes.

    python bench/placement.py [--profiles 1000] [--seed 1]

Random chains of 2 to 5 stages on 4 to 128 devices, a step of 64 parts, no switch or memory costs, as the rule knows none.
The search must never be slower; how often and how much it is faster is printed by the number of stages and by that of
devices, and how much of that is hand-over's: against the same search without it. Then seconds of the search for 3 and 5
stages on 1,024 devices, the least of ten. Ends with status 1 where it was slower, or takes more than 200 ms.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "api"), str(ROOT / "tests" / "support")]

from rlinf_rule import RuleStage, as_stages, rollout, rule, scaled  # noqa: E402

from rl_api.planner.search import Stage, search  # noqa: E402

GROUPS = 64
DEVICES = (4, 8, 16, 64, 128)
TARGET = 0.2
"""Seconds of a search for 5 stages on 1,024 devices."""


def chain(rng: random.Random, devices: int, stages: int) -> list[RuleStage]:
    """Stages with random costs: the first is a rollout, the others train or infer on powers of two."""
    powers = [2**power for power in range(devices.bit_length()) if 2**power <= devices]
    made = []
    for index in range(stages):
        cost, at_once = rng.uniform(5, 300), rng.choice((16, 64, 256))
        if index == 0:
            counts = range(1, devices + 1)
            group = {
                count: rollout(cost, devices, count, answers=64 * devices, at_once=at_once) / GROUPS
                for count in counts
            }
        else:
            group = {count: scaled(cost, devices, count) / GROUPS for count in powers}
        made.append(RuleStage(f"stage {index}", group))
    return made


@dataclass(frozen=True)
class Gain:
    """Of one chain: the rule's seconds over the search's, and those of the search without hand-over over its own."""

    stages: int
    devices: int
    over_rule: float
    by_hand_over: float


def compare(profiles: int, seed: int) -> list[Gain]:
    """What the search gains on random chains."""
    rng = random.Random(seed)
    gains = []
    for _ in range(profiles):
        stages, devices = rng.choice((2, 3, 4, 5)), rng.choice(DEVICES)
        made = chain(rng, devices, stages)
        theirs, _ = rule(made, devices, GROUPS)
        ours = as_stages(made, GROUPS)
        best, without = (
            search([replace(one, hands_over=one.hands_over and hands_over) for one in ours], devices, GROUPS)
            for hands_over in (True, False)
        )
        total = best.best[0].total
        gains.append(Gain(stages, devices, theirs / total, without.best[0].total / total))
    return gains


def table(gains: Sequence[Gain], name: str) -> None:
    """A line for each number of `name`."""
    print(
        f"{name:>8} {'chains':>7} {'faster by 1 %':>14} {'mean':>6} {'most':>6} {'slower':>7}"
        f" {'by hand-over':>13} {'mean':>6} {'most':>6}"
    )
    for count in sorted({getattr(gain, name) for gain in gains}):
        found = [gain for gain in gains if getattr(gain, name) == count]
        over, hand_over = [gain.over_rule for gain in found], [gain.by_hand_over for gain in found]
        print(
            f"{count:>8} {len(found):>7} {sum(one > 1.01 for one in over):>14} {fmean(over):>6.3f} {max(over):>6.2f}"
            f" {sum(one < 1 - 1e-9 for one in over):>7}"
            f" {sum(one > 1.01 for one in hand_over):>13} {fmean(hand_over):>6.3f} {max(hand_over):>6.2f}"
        )


def seconds(devices: int, stages: int) -> float:
    """Of the search, the least of ten."""
    rng = random.Random(3)
    made = []
    for index in range(stages):
        cost, scaling = rng.uniform(10, 300), rng.uniform(0.6, 1.0)
        counts = range(8, devices + 1, 8) if index == 0 else [2**power for power in range(11)]
        whole = {count: cost * (devices / count) ** scaling for count in counts}
        parts = {count: (value / GROUPS, value / GROUPS) for count, value in whole.items()}
        made.append(Stage(f"stage {index}", whole, parts, switch=3.0, hands_over=index == 0))
    least = float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        search(made, devices, GROUPS)
        least = min(least, time.perf_counter() - begin)
    return least


def main() -> int:
    """Both parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profiles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    gains = compare(args.profiles, args.seed)
    for name in ("stages", "devices"):
        table(gains, name)
    never_slower = all(gain.over_rule >= 1 - 1e-9 for gain in gains)
    took = {stages: seconds(1024, stages) for stages in (3, 5)}
    for stages, least in took.items():
        print(f"{stages} stages on 1,024 devices: {least * 1000:.0f} ms")
    return 0 if never_slower and took[5] <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
