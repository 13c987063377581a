"""The buffer demo: two samplers, one learner, 2,048 places between them, batches of 64.

python examples/tutorials/08_buffer.py                 # Ctrl-C ends it
python examples/tutorials/08_buffer.py --steps 100
"""

from __future__ import annotations

import argparse
import sys

from flow import Times, run
from show import Row, ray_here, table


def main(steps: int = 100) -> list[Row]:
    """Rows: what came out of the channel. Every ten steps the learner prints samples per second.

    In the end it is printed who sat where.
    """
    [seen], figures, hosts = run(2048, Times(), steps=steps, tell=True)
    row = {
        "steps": len(seen.fill),
        "samples": len(seen.items),
        "samples/s": f"{len(seen.items) / seen.seconds:,.0f}",
        "left in the queue": figures["size"],
        "longest wait for room, s": f"{figures['producer_wait']['longest']:.2f}",
    }
    table([row], "Two samplers, one learner")
    table([{"actor": actor, "host": host} for actor, host in hosts.items()], "Who sat where")
    return [row]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000, help="learner's steps, then it ends")
    options = parser.parse_args()
    try:
        with ray_here(log_to_driver=True):
            main(options.steps)
    except KeyboardInterrupt:
        sys.exit("stopped")
