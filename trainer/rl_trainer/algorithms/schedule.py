"""Learning-rate schedule: a pure function of the optimizer step, so a resumed run needs no state of it."""

from __future__ import annotations

import math

from rl_api.algorithm import OptimizerSpec


def learning_rate(step: int, base: float, total_steps: int, options: OptimizerSpec) -> float:
    """Learning rate of optimizer step `step`, counted from 0.

    Warm-up: `base * (step + 1) / warmup_steps` while `step < warmup_steps`; it starts above 0 because a step with rate 0
    would waste its batch. After it, with `p = (step - warmup_steps) / (total_steps - warmup_steps)` in [0, 1]: constant
    `base`; linear `base * (min_ratio + (1 - min_ratio) * (1 - p))`; cosine `base * (min_ratio + (1 - min_ratio) * (1 +
    cos(pi * p)) / 2)`. The last step, `total_steps - 1`, is thus one step short of the floor `base * min_ratio`, at which
    later steps stay.

    Args:
        step: optimizer step, >= 0.
        base: the peak rate.
        total_steps: optimizer steps of the whole run, > 0. Changing it on resume changes the decay from there on.
        options: `warmup_steps`, `decay` and `min_ratio`.
    """
    warmup, floor = options.warmup_steps, options.min_ratio
    if step < warmup:
        return base * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    match options.decay:
        case "constant":
            return base
        case "linear":
            return base * (floor + (1.0 - floor) * (1.0 - progress))
        case "cosine":
            return base * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress)))
