"""Node pools: which one a role goes to, and what a pod needs to get there."""

from __future__ import annotations

from typing import Any

from rl_api.profile import PoolSpec, ProfileSpec, TolerationSpec

# A pod on a node that stopped answering is given up after half a minute instead of Kubernetes' five: its run waits.
_LOST_NODE_SECONDS = 30
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def find_pool(profile: ProfileSpec, name: str | None) -> PoolSpec | None:
    """The pool called `name`, or the profile's first where there is no name; None: it has no such pool."""
    if name is None:
        return profile.pools[0]
    return next((pool for pool in profile.pools if pool.name == name), None)


def head_pool(profile: ProfileSpec) -> PoolSpec:
    """Pool of the head: one without accelerators, which it would waste, and not spot, as its loss ends the attempt."""
    return min(profile.pools, key=lambda pool: (pool.accelerator_resource is not None, pool.spot))


def pod_placement(pool: PoolSpec) -> dict[str, Any]:
    """Fields of a pod's spec that bring it to the pool's nodes and keep it off others."""
    named = {toleration.key for toleration in pool.tolerations}
    placement: dict[str, Any] = {
        "tolerations": [
            *(_toleration(toleration) for toleration in pool.tolerations),
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
    if pool.node_selector:
        placement["nodeSelector"] = dict(sorted(pool.node_selector.items()))
    if pool.runtime_class is not None:
        placement["runtimeClassName"] = pool.runtime_class
    return placement


def _toleration(toleration: TolerationSpec) -> dict[str, Any]:
    document = toleration.to_document()
    return {key: value for key, value in document.items() if value is not None}


def accelerator_resources(pool: PoolSpec, count: int) -> dict[str, str]:
    """The resource that stands for `count` accelerators of the pool: whole GPUs, MIG slices, other vendors' devices."""
    if count == 0 or pool.accelerator_resource is None:
        return {}
    return {pool.accelerator_resource: str(count)}
