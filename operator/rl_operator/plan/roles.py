"""The roles of a run: how many pods each has, of what size, and where. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rl_api.profile import PoolSpec, ProfileSpec
from rl_api.roles import ResourcesSpec
from rl_api.run import RunSpec
from rl_operator.model.names import HEAD, LEARNER, SAMPLER
from rl_operator.model.settings import Settings
from rl_operator.plan.backends import backend_of
from rl_operator.plan.pools import where


@dataclass(frozen=True)
class Role:
    """One role of a run: how many pods, where, of what size."""

    name: str
    replicas: int
    pools: tuple[PoolSpec, ...]
    """Where its pods may go, the most wanted first. They are alike but for their nodes and limits."""
    image: str
    cpu: str
    ray_cpus: int
    """CPU cores that Ray may hand out on one pod."""
    memory: str
    accelerators: int = 0
    least: int | None = None
    """Pods that an attempt begins with, where others may follow; None: all."""

    @property
    def pool(self) -> PoolSpec:
        """What stands for all of its pools where they are alike."""
        return self.pools[0]

    @property
    def where(self) -> str:
        """Its pools for people: `pool h100`, or `pools h100, h100-spot`."""
        return where(self.pools)

    @property
    def at_start(self) -> int:
        """Pods that an attempt begins with."""
        return self.replicas if self.least is None else self.least


def make_roles(
    spec: RunSpec,
    profile: ProfileSpec,
    pools: Mapping[str, tuple[PoolSpec, ...]],
    settings: Settings,
    queued: bool,
) -> Iterator[Role]:
    """Every role that has pods.

    Args:
        spec: the run, with its profile's defaults.
        profile: the profile.
        pools: of each role that has pods, where they may go.
        settings: the operator's.
        queued: a queue admits the run, with a number of pods that is fixed.
    """
    yield _head(spec, profile, pools[HEAD], settings)
    if LEARNER in pools:
        yield _learner(spec, profile, pools[LEARNER], settings)
    if SAMPLER in pools:
        yield _sampler(spec, profile, pools[SAMPLER], settings, queued)


def _head(spec: RunSpec, profile: ProfileSpec, pools: tuple[PoolSpec, ...], settings: Settings) -> Role:
    asked = spec.trainer.resources or ResourcesSpec()
    memory = _memory(pools[0], settings) if spec.trainer.pools else settings.head_memory
    return Role(
        HEAD,
        1,
        pools,
        _image(spec, profile, pools[0], settings),
        settings.head_cpu if asked.cpu is None else _cores(asked.cpu),
        # One CPU for Ray to hand out: the buffer asks for a hundredth of one.
        max(1, math.ceil(asked.cpu or 0)),
        asked.memory or memory,
        accelerators=asked.accelerators or 0,
    )


def _learner(spec: RunSpec, profile: ProfileSpec, pools: tuple[PoolSpec, ...], settings: Settings) -> Role:
    pool, learner = pools[0], spec.learner
    return Role(
        LEARNER,
        learner.replicas,
        pools,
        _image(spec, profile, pool, settings),
        _cpu(pool, learner.threads, settings),
        learner.threads,
        _memory(pool, settings),
        accelerators=0 if pool.accelerator_resource is None else backend_of(spec).learner_accelerators(pool),
    )


def _sampler(
    spec: RunSpec, profile: ProfileSpec, pools: tuple[PoolSpec, ...], settings: Settings, queued: bool
) -> Role:
    pool, sampler = pools[0], spec.sampler
    asked = sampler.resources or ResourcesSpec()
    accelerators = asked.accelerators
    if accelerators is None:
        accelerators = 0 if pool.accelerator_resource is None else sampler.tensor_parallel_size
    return Role(
        SAMPLER,
        sampler.replicas,
        pools,
        _image(spec, profile, pool, settings),
        _cpu(pool, sampler.threads, settings) if asked.cpu is None else _cores(asked.cpu),
        max(sampler.threads, math.ceil(asked.cpu or 0)),
        asked.memory or _memory(pool, settings),
        accelerators=accelerators,
        least=None if queued else sampler.min_replicas,
    )


def _image(spec: RunSpec, profile: ProfileSpec, pool: PoolSpec, settings: Settings) -> str:
    if spec.image is not None:
        return spec.image
    if pool.accelerator_resource is None:
        return profile.images.cpu or settings.image_cpu
    return profile.images.gpu or settings.image_gpu


def _memory(pool: PoolSpec, settings: Settings) -> str:
    return settings.worker_memory if pool.accelerator_resource is None else settings.accelerator_memory


def _cpu(pool: PoolSpec, threads: int, settings: Settings) -> str:
    return settings.worker_cpu if pool.accelerator_resource is None else str(threads)


def _cores(cores: float) -> str:
    return f"{round(cores * 1000)}m"
