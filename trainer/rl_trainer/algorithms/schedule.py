"""Learning-rate schedule: a pure function of the optimizer step, so a resumed run needs no state of it."""

from __future__ import annotations

import math
from typing import Literal

Decay = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int,
    *,
    base: float,
    total_steps: int,
    warmup_steps: int = 0,
    decay: Decay = "constant",
    min_ratio: float = 0.0,
) -> float:
    """Learning rate of optimizer step `step`, counted from 0.

    Warm-up: `base * (step + 1) / warmup_steps` while `step < warmup_steps`; it starts above 0 because a step
    with rate 0 would waste its batch. After it, with `p = (step - warmup_steps) / (total_steps -
    warmup_steps)` in [0, 1]: constant `base`; linear `base * (min_ratio + (1 - min_ratio) * (1 - p))`; cosine
    `base * (min_ratio + (1 - min_ratio) * (1 + cos(pi * p)) / 2)`. The last step, `total_steps - 1`, is thus
    one step short of the floor `base * min_ratio`, at which later steps stay.

    Args:
        step: optimizer step, >= 0.
        base: the peak rate.
        total_steps: optimizer steps of the whole run, > 0. Changing it on resume changes the decay from there
            on.
        warmup_steps: optimizer steps of the linear warm-up, >= 0.
        decay: shape after the warm-up.
        min_ratio: the floor as a part of `base`, 0 to 1; without meaning for `constant`.

    Raises:
        ValueError: an argument is out of its range.
    """
    if step < 0 or warmup_steps < 0 or total_steps <= 0:
        raise ValueError(
            f"step {step} and warmup_steps {warmup_steps} must be at least 0, "
            f"total_steps {total_steps} at least 1"
        )
    if not 0.0 <= min_ratio <= 1.0:
        raise ValueError(f"min_ratio is {min_ratio}, must lie between 0 and 1")
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if decay == "constant":
        return base
    if decay == "linear":
        return base * (min_ratio + (1.0 - min_ratio) * (1.0 - progress))
    if decay == "cosine":
        return base * (min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress)))
    raise ValueError(f"decay is {decay!r}, must be constant, linear or cosine")
