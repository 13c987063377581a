"""How large a queue should be: 64, 2,048 and 8,192 places before a learner that stands still now and then.

python examples/tutorials/09_capacity.py
"""

from __future__ import annotations

from flow import Times, run
from show import Row, ray_here, table

CAPACITIES = (64, 2048, 8192)
# Samplers make about 3,200 answers a second; the learner could take 3,400, and with its pauses about 2,300.
TIMES = Times(pause=0.5, every=50)


def main(steps: int = 400, capacities: tuple[int, ...] = CAPACITIES, times: Times = TIMES) -> list[Row]:
    """Rows: places, samples a second, how full the queue was, and how old what was trained on was."""
    rows = []
    for capacity in capacities:
        [seen], figures, _ = run(capacity, times, steps=steps)
        speed = len(seen.items) / seen.seconds
        late = seen.fill[len(seen.fill) // 2 :]  # once it has filled as far as it does
        rows.append(
            {
                "places": f"{capacity:,}",
                "samples/s": f"{speed:,.0f}",
                "full, %": f"{100 * sum(late) / len(late) / capacity:.0f}",
                "age of a sample, s": f"{sum(late) / len(late) / speed:.1f}",
                "longest wait for room, s": f"{figures['producer_wait']['longest']:.2f}",
            }
        )
    table(rows, "Two samplers, and a learner that pauses half a second every 50 steps")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
