"""Do samplers and learner compute the same policy? Wrong names, types or kernels train on with no error otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_api import RunSpec
from rl_api.errors import PolicyMismatch
from rl_trainer.trajectory import Group


def check_agreement(spec: RunSpec, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
    """Holds what the learner found in step `step` (from 0) against `weightSync.maxMismatch`.

    Only where both had the same weights: all tokens of `groups` are of the version that was trained, and no optimizer step
    of this batch came between. Under top-k sampling an engine's probabilities are rightly larger, by a factor without bound.

    Args:
        groups: of the batch.
        metrics: of its update; `mismatch_bounded` is the mean of exp|l_learner - l_sampler| over its tokens, each bounded,
            so that a few odd ones end no run.

    Raises:
        PolicyMismatch: they differ by more.
    """
    bound, algorithm = spec.weight_sync.max_mismatch, spec.algorithm
    once = algorithm.mini_batches * algorithm.epochs == 1 or algorithm.loss.proximal == "recomputed"
    found = metrics.get("mismatch_bounded")
    version = step // spec.weight_sync.every_steps
    trained_since = step % spec.weight_sync.every_steps
    same = not trained_since and all(group.min_version == version for group in groups)
    if bound is None or found is None or spec.sampler.top_k or not (once and same):
        return
    # What the nucleus holds is scaled to 1, which takes at most this factor.
    bound /= spec.sampler.top_p
    if found > bound:
        raise PolicyMismatch(
            f"step {step + 1}: samplers (engine {spec.sampler.engine}) and learner differ about the same tokens under the "
            f"same weights by a factor of {found:.3g} in the mean, allowed: {bound:.3g}; nothing of this step was kept. "
            "Compare model.dtype, engine and the images' versions; spec.weightSync.maxMismatch is the bound, null: none"
        )
