"""How much slower work gets where several processes of a node do it at once, from when each did a piece. Pure.

Processors of a node share its memory and the caches before it: what one of them takes alone says too little of what each
takes where all compute.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Times = Sequence[tuple[float, float]]
"""When each piece of work began and ended, in order, seconds."""


def contention(alone: Times, together: Sequence[Times]) -> float | None:
    """The share by which a piece takes longer for each other process that does the same, 0 to 1.

    `alone`: pieces of one process while no other worked; `together`: of all processes at once, of which those count that
    were begun and ended while all worked: None where there are none. 0 where there is only one process. More than 1 no
    process can cost the others: they would be faster one after the other.
    """
    if len(together) < 2:
        return 0.0
    begin, end = max(times[0][0] for times in together), min(times[-1][1] for times in together)
    while_all = [
        last - first for times in together for first, last in times if begin <= first and last <= end
    ]
    if not while_all:
        return None
    slower = statistics.median(while_all) / statistics.median(last - first for first, last in alone)
    return min(1.0, max(0.0, (slower - 1) / (len(together) - 1)))
