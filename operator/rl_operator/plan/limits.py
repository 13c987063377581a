"""What a run or service asks for, against what nodes have and the profile lets it, and all of its namespace, have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

from rl_api.base import amount
from rl_api.paths import Path
from rl_api.problems import Problem
from rl_api.profile import NamespaceLimitsSpec, ProfileSpec
from rl_api.run import RunSpec
from rl_operator.model.names import HEAD, LEARNER, SAMPLER, TASK_WORKERS, field_of
from rl_operator.model.needs import NOTHING, Needs
from rl_operator.plan.roles import Role


def misplaced(spec: RunSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Roles that do not fit the nodes of their pools."""
    head = next(role for role in roles if role.name == HEAD)
    if head.accelerators:
        yield from _no_room(("spec", "trainer", "resources", "accelerators"), head)
    for learner in roles:
        if learner.name == LEARNER and spec.learner.resources is not None:
            yield from _no_room(("spec", "learner", "resources", "accelerators"), learner)
    for worker in roles:
        if worker.name in TASK_WORKERS:
            yield from _no_room((*field_of(worker.name), "accelerators"), worker)
    sampler = next((role for role in roles if role.name == SAMPLER), None)
    if sampler is None:
        return
    explicit = spec.sampler.resources is not None and spec.sampler.resources.accelerators is not None
    path: Path = (
        "spec",
        "sampler",
        *(("resources", "accelerators") if explicit else ("tensorParallelSize",)),
    )
    sizes, stages = spec.sampler.tensor_parallel_size, spec.sampler.pipeline_parallel_size
    pods = spec.sampler.pods_per_replica
    over = f" / podsPerReplica {pods}" if pods > 1 else ""
    parts = f"tensorParallelSize {sizes} * pipelineParallelSize {stages}{over}, in one pod "
    yield from _no_room(path, sampler, "" if explicit or stages == 1 else parts)
    if spec.sampler.engine == "vllm" and not sampler.accelerators and sampler.pool.accelerator:
        yield Problem(
            path,
            f"found 0, allowed: at least {spec.sampler.devices_per_pod} with engine vllm on {sampler.where}",
        )


def _no_room(path: Path, role: Role, parts: str = "") -> Iterator[Problem]:
    """More accelerators per pod than the nodes of its pools have; `parts`: what makes so many of them."""
    if role.accelerators and role.pool.accelerator is None:
        yield Problem(path, f"found {role.accelerators}, allowed: 0 on {role.where}, without accelerators")
    for pool in role.pools:
        per_node = pool.accelerators_per_node
        if per_node is not None and role.accelerators > per_node:
            yield Problem(
                path,
                f"found {parts}{role.accelerators}, allowed: at most {per_node}, what a node of pool {pool.name} has",
            )


def over_limits(title: str, profile: ProfileSpec, spec: RunSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Where the run asks for more than the profile, called `title`, lets one run have."""
    limits = profile.limits
    by_role = {role.name: role for role in roles}
    for name, limit in ((SAMPLER, limits.max_samplers), (LEARNER, limits.max_learners)):
        role = by_role.get(name)
        # Samplers in learners' pods count as those do that have their own.
        guests = spec.shared_samplers if name == SAMPLER else 0
        count = guests + (role.replicas if role is not None else 0)
        if limit is not None and count > limit:
            found = _pods(role) if role is not None and not guests else str(count)
            sentence = f"found {found}, allowed: at most {limit}, the limit of {title}"
            yield Problem(("spec", name, "replicas"), sentence)
    workers = {
        TASK_WORKERS[role.name].rpartition(".")[2]: role.replicas
        for role in roles
        if role.name in TASK_WORKERS
    }
    if limits.max_task_workers is not None and sum(workers.values()) > limits.max_task_workers:
        shares = ", ".join(f"{name}: {count}" for name, count in workers.items())
        yield Problem(
            ("spec", "task"),
            f"found {sum(workers.values())} task workers ({shares}), allowed: at most {limits.max_task_workers}, "
            f"the limit of {title}",
        )
    yield from _together(title, profile, roles)
    longest, asked = limits.max_duration, spec.stop.max_duration
    if longest is not None and asked is not None and asked > longest:
        sentence = f"found {asked}, allowed: at most {longest}, the limit of {title}"
        yield Problem(("spec", "stop", "maxDuration"), sentence)
    most, said = limits.max_preemption_grace_period, spec.scheduling.preemption_grace_period
    if most is not None and said > most and "preemption_grace_period" in spec.scheduling.model_fields_set:
        sentence = f"found {said}, allowed: at most {most}, the limit of {title}"
        yield Problem(("spec", "scheduling", "preemptionGracePeriod"), sentence)
    yield from _each(title, profile, roles, lambda role: (*field_of(role.name), "replicas"))


def pods_over_limits(
    title: str, profile: ProfileSpec, roles: Sequence[Role], replicas_of: Callable[[Role], Path]
) -> Iterator[Problem]:
    """Where a service asks for more than the profile lets one run have; the number of a role's pods stands at
    `replicas_of` it."""
    yield from _together(title, profile, roles)
    yield from _each(title, profile, roles, replicas_of)


def _together(title: str, profile: ProfileSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Accelerators of all pods."""
    limits = profile.limits
    total = sum(role.replicas * role.accelerators for role in roles)
    if limits.max_accelerators is not None and total > limits.max_accelerators:
        yield Problem(
            ("spec",),
            f"found {total} accelerators ({_shares(roles)}), allowed: at most {limits.max_accelerators}, "
            f"the limit of {title}",
        )


def _each(
    title: str, profile: ProfileSpec, roles: Sequence[Role], replicas_of: Callable[[Role], Path]
) -> Iterator[Problem]:
    """Disk of a pod, what a namespace may have, and what a pool gives."""
    limits = profile.limits
    most = limits.max_ephemeral_storage
    for role in roles if most is not None else ():
        if most is not None and role.pod.storage > amount(most):
            disk = role.ephemeral_storage if role.code is None else f"{role.pod.storage / 2**30:.6g}Gi"
            yield Problem(
                ("spec",),
                f"found {disk} of disk for a pod of the {role.name}, allowed: at most {most}, "
                f"the limit of {title}",
            )
    for what, found, most_of_all in exceeded(limits.per_namespace, pods_need(roles)):
        yield Problem(
            ("spec",),
            f"found {found} {what}, allowed: at most {most_of_all}, the limit of {title} for a namespace",
        )
    for pool in profile.pools:
        # Where a role has several pools, all of its pods may end up in any of them.
        here = [role for role in roles if pool in role.pools]
        for role in here:
            replicas = pool.limits.max_replicas
            if role.name != HEAD and replicas is not None and role.replicas > replicas:
                yield Problem(
                    replicas_of(role),
                    f"found {_pods(role)}, allowed: at most {replicas}, the limit of pool {pool.name}",
                )
        used = sum(role.replicas * role.accelerators for role in here)
        if pool.limits.max_accelerators is not None and used > pool.limits.max_accelerators:
            yield Problem(
                ("spec",),
                f"found {used} accelerators of pool {pool.name} ({_shares(here)}), allowed: at most "
                f"{pool.limits.max_accelerators}, the limit of the pool",
            )


def needs_of(roles: Sequence[Role]) -> Needs:
    """What a run with these roles takes at most."""
    return Needs(runs=1) + pods_need(roles)


def pods_need(roles: Sequence[Role]) -> Needs:
    """What the pods of these roles take at most: all that a service takes, which is no run."""
    return sum((role.pod.times(role.replicas) for role in roles), NOTHING)


def limited(limits: NamespaceLimitsSpec, needs: Needs) -> bool:
    """Whether anything of this is limited."""
    most = (
        *(limits.max_runs, limits.max_samplers, limits.max_learners),
        *(limits.max_accelerators, limits.max_ephemeral_storage, limits.max_task_workers),
    )
    return any(limit is not None and found for limit, found in zip(most, astuple(needs), strict=True))


def exceeded(limits: NamespaceLimitsSpec, needs: Needs) -> Iterator[tuple[str, str, str]]:
    """What there is more of than a namespace may have at once, with how much there is and may be, for people."""
    for what, found, most in (
        ("runs", needs.runs, limits.max_runs),
        ("samplers", needs.samplers, limits.max_samplers),
        ("learners", needs.learners, limits.max_learners),
        ("task workers", needs.task_workers, limits.max_task_workers),
        ("accelerators", needs.accelerators, limits.max_accelerators),
    ):
        if most is not None and found > most:
            yield what, str(found), str(most)
    storage = limits.max_ephemeral_storage
    if storage is not None and needs.storage > amount(storage):
        yield "of disk", f"{needs.storage / 2**30:.6g}Gi", storage


def _pods(role: Role) -> str:
    """The pods of a role, and what makes so many of them."""
    several = f"{role.replicas // role.hosts} * podsPerReplica {role.hosts} = " if role.hosts > 1 else ""
    return f"{several}{role.replicas}"


def _shares(roles: Sequence[Role]) -> str:
    return ", ".join(
        f"{role.name}: {role.replicas} * {role.accelerators}" for role in roles if role.accelerators
    )
