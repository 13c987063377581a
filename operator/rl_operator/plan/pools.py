"""Node pools: which one a role goes to, and what a pod needs to get there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_api.paths import Path
from rl_api.problems import Problem
from rl_api.profile import PoolSpec, ProfileSpec
from rl_api.run import RunSpec
from rl_api.task import role_of
from rl_operator.model.names import HEAD, LEARNER, SAMPLER, field_of
from rl_operator.model.workload import NOWHERE, Placed
from rl_operator.plan.topology import wrong_topology

# A pod on a node that stopped answering is given up after half a minute instead of Kubernetes' five: its run waits.
_LOST_NODE_SECONDS = 30
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def where(pools: Sequence[PoolSpec]) -> str:
    """Pools for people: `pool h100`, or `pools h100, h100-spot`."""
    return f"pool{'s' * (len(pools) > 1)} {', '.join(pool.name for pool in pools)}"


def pools_of_roles(
    spec: RunSpec, profile: ProfileSpec, title: str, workers: Sequence[str]
) -> tuple[dict[str, tuple[PoolSpec, ...]], list[Problem]]:
    """Where the head and each of `workers` may go, and what keeps them from the pools of the profile that they name."""
    by_name = {pool.name: pool for pool in profile.pools}
    # The head: where are no accelerators, which it would waste, and not on spot nodes, as its loss ends the attempt.
    least = min(profile.pools, key=lambda pool: (pool.accelerator is not None, pool.spot))
    with_some = next((pool for pool in profile.pools if pool.accelerator is not None), least)
    asks_server = spec.sampler.engine == "endpoint"
    pools, problems = {}, list[Problem]()
    task = spec.given_task.workers if spec.given_task is not None else {}
    for role, names, default in (
        (HEAD, spec.trainer.pools, least),
        (LEARNER, spec.learner.pools, profile.pools[0]),
        # One that asks a server computes as little as the head, and its loss as well costs a restart.
        (SAMPLER, spec.sampler.pools, least if asks_server else profile.pools[0]),
        *((role_of(kind), one.pools, with_some if one.accelerators else least) for kind, one in task.items()),
    ):
        if role == HEAD or role in workers:
            problems += wrong_pools(by_name, title, field_of(role), names)
            pools[role] = tuple(by_name[name] for name in names if name in by_name) if names else (default,)
    for role, group in ((LEARNER, spec.learner), (SAMPLER, spec.sampler)):
        if pools.get(role):
            problems += wrong_topology(role, group.topology, pools[role])
    return pools, problems


def wrong_pools(
    by_name: Mapping[str, PoolSpec], title: str, part: Path, names: Sequence[str]
) -> Iterator[Problem]:
    """What keeps a role from the pools that it names: they must be there, and several alike but for their nodes.

    A role is one worker group, and so all of its pods are alike: the scheduler finds a node for each.
    """
    first = by_name.get(names[0]) if names else None
    for index, name in enumerate(names):
        path, pool = (*part, "pools", index), by_name.get(name)
        if pool is None:
            yield Problem(path, f"found {name!r}, allowed: a pool of {title}: {', '.join(by_name)}")
        elif first is not None and _pods_of(pool) != _pods_of(first):
            yield Problem(
                path,
                f"found {name!r} ({_pods_of(pool)}), allowed beside {first.name!r}: pools whose pods are alike "
                f"({_pods_of(first)})",
            )
        elif len(names) > 1 and not pool.node_selector:
            yield Problem(
                path,
                f"found {name!r}, which has no nodeSelector, allowed where several pools are named: pools that have one",
            )


def _pods_of(pool: PoolSpec) -> str:
    """What of a pool is part of a pod wherever it runs."""
    asked = f"acceleratorResource {pool.accelerator_resource or 'none'}"
    if pool.device_class is not None:
        asked = f"deviceClass {' where '.join((pool.device_class.name, *pool.device_class.selectors))}"
    return f"{asked}, runtimeClass {pool.runtime_class or 'none'}"


def pod_placement(pools: Sequence[PoolSpec], placed: Placed = NOWHERE) -> dict[str, Any]:
    """Fields of a pod's spec that bring it to the nodes of the pools, the first rather than the second, and to no others;
    where a queue has `placed` it, to its nodes among those."""
    tolerations = list(dict.fromkeys(toleration for pool in pools for toleration in pool.tolerations))
    named = {toleration.key for toleration in tolerations}
    placement: dict[str, Any] = {
        "tolerations": [
            *(one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in tolerations),
            *(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _LOST_NODE_SECONDS,
                }
                for key in _LOST_NODE
                if key not in named  # a pool may ask for more patience
            ),
        ]
    }
    given = [dict(one) for one in placed.tolerations]
    placement["tolerations"] += [one for one in given if one not in placement["tolerations"]]
    selector = dict(placed.node_selector)
    if len(pools) > 1:
        placement["affinity"] = {"nodeAffinity": _any_of(pools)}
    else:
        selector |= pools[0].node_selector
    if selector:
        placement["nodeSelector"] = dict(sorted(selector.items()))
    if pools[0].runtime_class is not None:
        placement["runtimeClassName"] = pools[0].runtime_class
    return placement


def _any_of(pools: Sequence[PoolSpec]) -> dict[str, Any]:
    """Node affinity to any of the pools. The weights, from 100 down to 0, keep neighbours as far apart as they can be."""
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]}
                for key, value in sorted(pool.node_selector.items())
            ]
        }
        for pool in pools
    ]
    last = len(pools) - 1
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": max(1, round(100 * (last - index) / last)), "preference": term}
            for index, term in enumerate(terms[:-1])
        ],
    }
