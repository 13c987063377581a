"""Two learners that poll one queue: twice as fast, every sample once, and two different policies.

python examples/tutorials/11_two_learners.py
"""

from __future__ import annotations

from flow import Times, run
from show import Row, ray_here, table

TIMES = Times(step=0.08)


def main(steps: int = 40) -> list[Row]:
    """Rows: learners, samples a second, what each got, and how many samples came to more than one."""
    rows = []
    for learners in (1, 2):
        seen, _, _ = run(2048, TIMES, learners=learners, steps=steps // learners)
        got = [item for one in seen for item in one.items]
        rows.append(
            {
                "learners": learners,
                "samples/s": f"{len(got) / max(one.seconds for one in seen):,.0f}",
                "samples of each": " + ".join(str(len(one.items)) for one in seen),
                "twice": len(got) - len(set(got)),
                "both samplers in each": "yes"
                if all(len({who for who, _ in one.items}) == 2 for one in seen)
                else "no",
            }
        )
    table(rows, "Batches of 64, 80 ms a step")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
