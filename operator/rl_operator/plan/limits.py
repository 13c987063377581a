"""What a run asks for, against what nodes have and the profile lets it have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_api.paths import Path
from rl_api.problems import Problem
from rl_api.profile import ProfileSpec
from rl_api.run import RunSpec
from rl_operator.model.names import HEAD, LEARNER, SAMPLER
from rl_operator.plan.roles import Role


def misplaced(spec: RunSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Roles that do not fit the nodes of their pools."""
    head = next(role for role in roles if role.name == HEAD)
    if head.accelerators:
        yield from _no_room(("spec", "trainer", "resources", "accelerators"), head)
    sampler = next((role for role in roles if role.name == SAMPLER), None)
    if sampler is None:
        return
    resource = sampler.pool.accelerator_resource
    explicit = spec.sampler.resources is not None and spec.sampler.resources.accelerators is not None
    path: Path = (
        ("spec", "sampler", "resources", "accelerators")
        if explicit
        else ("spec", "sampler", "tensorParallelSize")
    )
    yield from _no_room(path, sampler)
    if spec.sampler.engine == "vllm" and sampler.accelerators == 0 and resource is not None:
        yield Problem(path, f"found 0, allowed: at least 1 with engine vllm on {sampler.where}")


def _no_room(path: Path, role: Role) -> Iterator[Problem]:
    """More accelerators per pod than the nodes of its pools have."""
    if role.accelerators and role.pool.accelerator_resource is None:
        yield Problem(path, f"found {role.accelerators}, allowed: 0 on {role.where}, without accelerators")
    for pool in role.pools:
        per_node = pool.accelerators_per_node
        if per_node is not None and role.accelerators > per_node:
            yield Problem(
                path,
                f"found {role.accelerators}, allowed: at most {per_node}, what a node of pool {pool.name} has",
            )


def over_limits(title: str, profile: ProfileSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Where the run asks for more than the profile, called `title`, lets one run have."""
    limits = profile.limits
    by_role = {role.name: role for role in roles}
    for name, limit in ((SAMPLER, limits.max_samplers), (LEARNER, limits.max_learners)):
        replicas = by_role[name].replicas if name in by_role else 0
        if limit is not None and replicas > limit:
            yield Problem(
                ("spec", name, "replicas"),
                f"found {replicas}, allowed: at most {limit}, the limit of {title}",
            )
    total = sum(role.replicas * role.accelerators for role in roles)
    if limits.max_accelerators is not None and total > limits.max_accelerators:
        yield Problem(
            ("spec",),
            f"found {total} accelerators ({_shares(roles)}), allowed: at most {limits.max_accelerators}, "
            f"the limit of {title}",
        )
    for pool in profile.pools:
        # Where a role has several pools, all of its pods may end up in any of them.
        here = [role for role in roles if pool in role.pools]
        for role in here:
            most = pool.limits.max_replicas
            if role.name != HEAD and most is not None and role.replicas > most:
                yield Problem(
                    ("spec", role.name, "replicas"),
                    f"found {role.replicas}, allowed: at most {most}, the limit of pool {pool.name}",
                )
        used = sum(role.replicas * role.accelerators for role in here)
        if pool.limits.max_accelerators is not None and used > pool.limits.max_accelerators:
            yield Problem(
                ("spec",),
                f"found {used} accelerators of pool {pool.name} ({_shares(here)}), allowed: at most "
                f"{pool.limits.max_accelerators}, the limit of the pool",
            )


def _shares(roles: Sequence[Role]) -> str:
    return ", ".join(
        f"{role.name}: {role.replicas} * {role.accelerators}" for role in roles if role.accelerators
    )
