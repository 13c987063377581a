"""Random tool latency: how a queue swings when some answers wait for a slow tool.

python examples/tutorials/10_tools.py
"""

from __future__ import annotations

from statistics import fmean, pstdev

from flow import Times, run
from show import Row, ray_here, table

_BARS = " ▁▂▃▄▅▆▇█"
# Eight samplers with a tool make as many answers as one without: the same load, but in gusts.
CASES = (
    ("1, without a tool", 1, Times(answers=(0.02, 0.03), step=0.1)),
    ("8, tool of 175 ms", 8, Times(answers=(0.02, 0.03), tool=0.175, step=0.1)),
)


def swing(fill: list[int], width: int = 48) -> str:
    """The fill after each step, as bars; the highest is full height."""
    shown = fill[-width:]
    highest = max(*shown, 1)
    return "".join(_BARS[round(one / highest * (len(_BARS) - 1))] for one in shown)


def main(steps: int = 60) -> list[Row]:
    """Rows: the tool, samples a second, and mean, deviation and course of the fill."""
    rows = []
    for name, samplers, times in CASES:
        [seen], _ = run(2048, times, samplers=samplers, steps=steps)
        rows.append(
            {
                "samplers": name,
                "samples/s": f"{len(seen.items) / seen.seconds:,.0f}",
                "fill, mean": f"{fmean(seen.fill):.0f}",
                "deviation": f"{pstdev(seen.fill):.0f}",
                "fill after each step": swing(seen.fill),
            }
        )
    table(rows, "2,048 places, one learner that takes 64 every tenth of a second")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
