"""What each actor of a run asks for. Pure."""

from __future__ import annotations

from collections.abc import Container

from rl_api import RunSpec
from rl_trainer.placement.groups import ROLE_SHARE, WHOLE_PLACE, Bundle


def bundles(
    spec: RunSpec, gpus: float = 0.0, marked: Container[str] = (), samplers: int | None = None
) -> list[Bundle]:
    """One bundle per actor, named as in messages.

    Args:
        spec: the run.
        gpus: GPUs that the Ray cluster has. One each for learners, then one each for samplers, where there are enough
            for all of a role and `sampler.resources.accelerators` does not say otherwise.
        marked: roles (head, learner, sampler) that have nodes of their own in the Ray cluster, each marked by a custom
            resource of that name. Where the head has one, the others get them too, if only later.
        samplers: how many; None: `sampler.replicas`.
    """

    def mark(role: str) -> str | None:
        return role if role in marked or "head" in marked else None

    learners = spec.learner.replicas
    samplers = spec.sampler.replicas if samplers is None else samplers
    resources = spec.sampler.resources
    learner_gpus = 1.0 if gpus >= learners else 0.0
    sampler_gpus = 1.0 if gpus >= learners + samplers else 0.0
    if resources is not None and resources.accelerators is not None:
        sampler_gpus = float(resources.accelerators)
    sampler_cpus = resources.cpu if resources is not None and resources.cpu else spec.sampler.threads
    share = WHOLE_PLACE if mark("sampler") else ROLE_SHARE
    return [
        # Ray refuses an empty bundle; the buffer computes next to nothing.
        Bundle("buffer", 0.01, role=mark("head")),
        *(
            Bundle(f"learner {rank}", spec.learner.threads, learner_gpus, mark("learner"))
            for rank in range(learners)
        ),
        *(
            Bundle(f"sampler {rank}", sampler_cpus, sampler_gpus, mark("sampler"), share)
            for rank in range(samplers)
        ),
    ]
