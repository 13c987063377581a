"""The roles of a run: how many pods each has, of what size, and where. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rl_api.base import amount
from rl_api.profile import PoolSpec, ProfileSpec
from rl_api.roles import ResourcesSpec
from rl_api.run import RunSpec
from rl_api.sizes.memory import PROCESS_OVERHEAD
from rl_api.task import CodeResourcesSpec, role_of
from rl_operator.model.names import HEAD, LEARNER, REWARD_MODEL, SAMPLER, SIMULATOR, TASK_WORKERS
from rl_operator.model.needs import Needs
from rl_operator.model.settings import Settings
from rl_operator.model.workload import NOWHERE, Placed
from rl_operator.plan.backends import backend_of
from rl_operator.plan.pools import where
from rl_operator.plan.topology import Topology, topology_of

_WORKER_DISKS: Final = {SIMULATOR: "5Gi", REWARD_MODEL: "20Gi"}
"""Most that a task worker's pod without accelerators keeps on its node's disk, where nobody says: logs and copies, and a
model that scores on cores."""


@dataclass(frozen=True)
class Role:
    """One role of a run: how many pods, where, of what size."""

    name: str
    replicas: int
    """Its pods, of all samplers where they have several each."""
    pools: tuple[PoolSpec, ...]
    """Where its pods may go, the most wanted first. They are alike but for their nodes and limits."""
    image: str
    cpu: str
    ray_cpus: int
    """CPU cores that Ray may hand out on one pod."""
    memory: str
    accelerators: int
    ephemeral_storage: str
    """Most that one pod keeps on its node's disk."""
    cpu_limit: str
    """Cores that one pod uses at most, where its node has some that nobody else uses."""
    trainer_image: str
    """Image with rltrain's trainer, whatever is in `image`."""
    least: int | None = None
    """Pods that an attempt begins with, where others may follow; None: all."""
    code: CodeResourcesSpec | None = None
    """What the container for code of the user's has in each pod; None: there is none."""
    placed: Placed = NOWHERE
    """Where a queue has put its pods."""
    topology: Topology | None = None
    """How its pods lie to each other; None: anyhow."""
    hosts: int = 1
    """Pods of each of its replicas, which KubeRay makes, and makes anew, together. Ray places samplers of so many pods on
    any of them, so that a sampler may have pods of several replicas."""

    @property
    def pool(self) -> PoolSpec:
        """What stands for all of its pools where they are alike."""
        return self.pools[0]

    @property
    def where(self) -> str:
        """Its pools for people: `pool h100`, or `pools h100, h100-spot`."""
        return where(self.pools)

    @property
    def pod(self) -> Needs:
        """What one of its pods takes."""
        storage = int(amount(self.ephemeral_storage))
        if self.code is not None:
            storage += int(amount(self.code.ephemeral_storage))
        return Needs(
            samplers=int(self.name == SAMPLER),
            learners=int(self.name == LEARNER),
            accelerators=self.accelerators,
            storage=storage,
            task_workers=int(self.name in TASK_WORKERS),
        )

    @property
    def wholes(self) -> int:
        """Those of its replicas that people count: samplers, of one pod or of several."""
        return self.replicas // self.hosts

    @property
    def at_start(self) -> int:
        """Pods that an attempt begins with."""
        return self.replicas if self.least is None else self.least


def make_roles(
    spec: RunSpec,
    profile: ProfileSpec,
    pools: Mapping[str, tuple[PoolSpec, ...]],
    settings: Settings,
    labelled: bool,
) -> Iterator[Role]:
    """Every role that has pods, which are those of `pools`; `labelled`: a queue admits the RayJob, with a
    number of pods that is fixed."""
    task = spec.given_task
    code = task.resources or CodeResourcesSpec() if task is not None and task.isolation == "strict" else None
    maker = RoleMaker(profile, pools, settings, spec.image)
    # One CPU of the head for Ray to hand out: the buffer asks for a hundredth of one.
    heavy = bool(spec.trainer.pools)
    yield maker.role(HEAD, 1, 1, asked=spec.trainer.resources, code=code, large_head=heavy)
    shared = spec.shared_samplers
    if LEARNER in pools:
        learner, per_pod = spec.learner, backend_of(spec).learner_accelerators(pools[LEARNER][0])
        threads = learner.threads * learner.ranks_per_replica
        role = maker.role(LEARNER, learner.replicas, threads, per_pod, learner.resources)
        if shared:
            threads = spec.sampler.threads if role.pool.accelerator is not None else spec.sampler.cores
            guest = replace(maker, pools={SAMPLER: role.pools}).role(
                SAMPLER, shared, threads, asked=spec.sampler.resources, code=code
            )
            role = with_guests(role, guest, spec)
        yield replace(role, topology=topology_of(learner.topology, role.pools))
    if SAMPLER in pools:
        sampler, hosts = spec.sampler, spec.sampler.pods_per_replica
        # Samplers above the fewest are admitted, moved and let go pod by pod.
        least = None if labelled or hosts > 1 or shared else sampler.min_replicas
        threads = sampler.threads if pools[SAMPLER][0].accelerator is not None else sampler.cores
        pods, each = (sampler.replicas - shared) * hosts, sampler.devices_per_pod
        role = maker.role(SAMPLER, pods, threads, each, sampler.resources, least, code=code)
        yield replace(role, topology=topology_of(sampler.topology, role.pools), hosts=hosts)
    for kind, workers in task.workers.items() if task is not None else ():
        if (name := role_of(kind)) in pools:
            # With Ray's own processes.
            memory = math.ceil((amount(workers.memory) + PROCESS_OVERHEAD) / 2**20)
            asked = ResourcesSpec(
                cpu=workers.cpu,
                memory=f"{memory}Mi",
                accelerators=workers.accelerators,
                ephemeral_storage=workers.ephemeral_storage,
            )
            # Environments are code of the user's, models that score are not.
            own = code if name == SIMULATOR else None
            yield maker.role(name, workers.replicas, 1, asked=asked, code=own)


def with_guests(learner: Role, sampler: Role, spec: RunSpec) -> Role:
    """Learners' pods in which samplers of the run live as well, and take turns with them on their devices: `sampler` is one
    of these, had it a pod of its own in the same pools.

    Cores are used in turn. Memory holds both, as what is moved off accelerators goes there; but where the pool has none and
    `placement.residency` is swap, what is moved out goes to a file: then it holds the larger one, and what is left of the
    other's processes. All pods of a role are alike, so that each has room for as many samplers as the one with the most, and
    the one container for the user's code has what each of these would have in a pod of its own.
    """
    ranks = spec.learner.ranks_per_replica
    guests = min(spec.shared_samplers, ranks)
    cores = max(learner.ray_cpus, ranks * max(spec.learner.threads, sampler.ray_cpus))
    own, theirs = amount(learner.memory), guests * amount(sampler.memory)
    if spec.placement.residency == "swap" and learner.pool.accelerator is None:
        memory = max(own, theirs) + ranks * PROCESS_OVERHEAD
    else:
        memory = own + theirs
    cpu, storage = amount(sampler.cpu) * guests, sampler.ephemeral_storage
    return replace(
        learner,
        cpu=learner.cpu if amount(learner.cpu) >= cpu else f"{math.ceil(cpu * 1000)}m",
        ray_cpus=cores,
        memory=f"{math.ceil(memory / 2**20)}Mi",
        ephemeral_storage=max(learner.ephemeral_storage, storage, key=amount),
        cpu_limit=str(max(int(learner.cpu_limit), int(sampler.cpu_limit) * guests)),
        code=_for_all(sampler.code, guests) if sampler.code is not None else None,
    )


def _for_all(code: CodeResourcesSpec, guests: int) -> CodeResourcesSpec:
    """What one container for the user's code has that serves so many samplers."""
    memory, storage = (
        f"{math.ceil(guests * amount(size) / 2**20)}Mi" for size in (code.memory, code.ephemeral_storage)
    )
    sizes = {"cpu": guests * code.cpu, "memory": memory, "ephemeral_storage": storage}
    return code.model_copy(update=sizes) if guests > 1 else code


@dataclass(frozen=True)
class RoleMaker:
    """Makes roles of one run or service, which may have brought an image of its own."""

    profile: ProfileSpec
    pools: Mapping[str, tuple[PoolSpec, ...]]
    settings: Settings
    image: str | None

    def role(
        self,
        name: str,
        replicas: int,
        threads: int,
        accelerators: int = 0,
        asked: ResourcesSpec | None = None,
        least: int | None = None,
        *,
        code: CodeResourcesSpec | None = None,
        large_head: bool = False,
    ) -> Role:
        """A role; `accelerators` of a pod in a pool that has some, where nobody says. A head computes little, unless it is
        `large_head`."""
        asked, pool = asked or ResourcesSpec(), self.pools[name][0]
        settings, images = self.settings, self.profile.images
        if pool.accelerator is None:
            image, memory = images.cpu or settings.image_cpu, settings.worker_memory
            cpu, accelerators = settings.worker_cpu, 0
        else:
            image, memory = images.gpu or settings.image_gpu, settings.accelerator_memory
            cpu = str(threads)
        if name == HEAD:
            cpu = settings.head_cpu
            memory = memory if large_head else settings.head_memory
        cores = max(threads, math.ceil(asked.cpu or 0))
        return Role(
            name,
            replicas,
            self.pools[name],
            image=image if self.image is None else self.image,
            cpu=cpu if asked.cpu is None else f"{round(asked.cpu * 1000)}m",
            ray_cpus=cores,
            memory=asked.memory or memory,
            accelerators=accelerators if asked.accelerators is None else asked.accelerators,
            ephemeral_storage=asked.ephemeral_storage
            or pool.ephemeral_storage
            or self._disk(name, asked.accelerators),
            cpu_limit=str(cores * settings.cpu_burst),
            # The smaller one, where the run has brought its own.
            trainer_image=image if self.image is None else images.cpu or settings.image_cpu,
            least=least,
            code=code,
        )

    def _disk(self, name: str, accelerators: int | None) -> str:
        """The head handles checkpoints of the models that others have accelerators for; task workers without any do not."""
        large = any(some[0].accelerator is not None for some in self.pools.values())
        disk = self.settings.accelerator_ephemeral_storage if large else self.settings.ephemeral_storage
        return disk if accelerators else min(disk, _WORKER_DISKS.get(name, disk), key=amount)
