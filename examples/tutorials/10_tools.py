"""Random tool latency: how a queue swings when answers wait for a slow tool.

python examples/tutorials/10_tools.py
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev

from flow import Times, run
from show import Row, ray_here, table

_BARS = " ▁▂▃▄▅▆▇█"
# Samplers, seconds of answers, and of a tool in the mean. Eight with a tool make as many answers as one without: the same
# load, but in gusts.
CASES = (("1, without a tool", 1, (0.02, 0.03), 0.0), ("8, tool of 175 ms", 8, (0.02, 0.03), 0.175))
STEP = 0.1


def bars(fill: list[int], width: int = 48) -> str:
    """The fill after each step, as bars; the highest is full height."""
    shown = fill[-width:]
    highest = max(*shown, 1)
    return "".join(_BARS[round(one / highest * (len(_BARS) - 1))] for one in shown)


def main(steps: int = 60, slower: float = 1.0) -> list[Row]:
    """Rows: the tool, samples a second, and mean, swing and course of the fill.

    The swing is the deviation of what a step changes: the fill itself also drifts, as nothing is exactly as fast as another.
    `slower`: everything takes so many times as long, and what a busy machine adds matters less.
    """
    rows = []
    for name, samplers, (least, most), tool in CASES:
        times = Times((slower * least, slower * most), tool=slower * tool, step=slower * STEP)
        [seen], _, _ = run(2048, times, samplers=samplers, steps=steps)
        rows.append(
            {
                "samplers": name,
                "samples/s": f"{len(seen.items) / seen.seconds:,.0f}",
                "fill, mean": f"{fmean(seen.fill):.0f}",
                "swing of a step": f"{pstdev(after - before for before, after in pairwise(seen.fill)):.0f}",
                "fill after each step": bars(seen.fill),
            }
        )
    table(rows, f"2,048 places, one learner that takes 64 every {1000 * slower * STEP:.0f} ms")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
