"""The planner's search against RLinf's published rule, under the same costs; and how long it takes.

    python bench/placement.py [--profiles 1000] [--seed 1]

Random chains of 2 to 5 stages on 4, 8 or 16 devices, a step of 64 parts, no switch or memory costs, as the rule knows none.
The search must never be slower; how often and how much it is faster is printed by the number of stages. Then seconds of the
search for 5 stages on 1,024 devices, the least of ten. Ends with status 1 where it was slower, or takes more than 200 ms.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "api"), str(ROOT / "tests" / "support")]

from rlinf_rule import RuleStage, as_stages, rollout, rule, scaled  # noqa: E402

from rl_api.planner.search import Stage, search  # noqa: E402

GROUPS = 64
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


def compare(profiles: int, seed: int) -> bool:
    """Prints a line for each number of stages; whether the search was slower in none."""
    rng = random.Random(seed)
    gains: dict[int, list[float]] = {}
    for _ in range(profiles):
        stages, devices = rng.choice((2, 3, 4, 5)), rng.choice((4, 8, 16))
        made = chain(rng, devices, stages)
        theirs, _ = rule(made, devices, GROUPS)
        gains.setdefault(stages, []).append(
            theirs / search(as_stages(made, GROUPS), devices, GROUPS).best[0].total
        )
    print(f"{'stages':>6} {'profiles':>8} {'faster by 1 %':>14} {'mean':>6} {'most':>6} {'slower':>6}")
    for stages, found in sorted(gains.items()):
        faster = sum(gain > 1.01 for gain in found)
        slower = sum(gain < 1 - 1e-9 for gain in found)
        mean = sum(found) / len(found)
        print(f"{stages:>6} {len(found):>8} {faster:>14} {mean:>6.3f} {max(found):>6.2f} {slower:>6}")
    return all(gain >= 1 - 1e-9 for found in gains.values() for gain in found)


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
    never_slower = compare(args.profiles, args.seed)
    took = {stages: seconds(1024, stages) for stages in (3, 5)}
    for stages, least in took.items():
        print(f"{stages} stages on 1,024 devices: {least * 1000:.0f} ms")
    return 0 if never_slower and took[5] <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
