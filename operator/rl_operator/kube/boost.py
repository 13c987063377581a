"""The boost of a Workload: whether Kueue minds it, and writing it."""

from __future__ import annotations

from typing import Final

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.decision import Boost
from rl_operator.model.names import Manifest
from rl_operator.model.workload import BOOST_ANNOTATION

WRONG: Final = "not-a-number"
"""A boost that Kueue refuses where it minds boosts."""


_WORKLOAD: Final = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}


def boost_manager(namespace: str) -> str:
    """Name under which the operator of this namespace writes boosts: two operators in a cluster have two."""
    return f"rltrain-boost-{namespace}"


async def minds_boosts(api: Api, namespace: str) -> bool | None:
    """Whether Kueue minds boosts (its feature gate PriorityBoost is on); None: it cannot be told now.

    Its webhook refuses a boost that is no number if the gate is on, and looks at none if it is off
    (pkg/webhooks/workload_webhook.go, ValidateWorkload). It has no side effects, so it is asked in a dry run too, of which
    nothing is left.
    """
    try:
        await api.create(_probe(namespace), dry_run=True)
    except ApiError as error:
        # In a sentence of a webhook's, which has no causes.
        return True if error.status in (403, 422) and BOOST_ANNOTATION in error.message else None
    return False


async def write_boost(api: Api, namespace: str, boost: Boost, manager: str) -> Manifest:
    """Write a boost into this very Workload; returns it as it is now.

    Raises:
        ApiError: it was refused; `conflict` where somebody else wrote another one, or the Workload is gone or another one.
    """
    metadata = {"name": boost.workload, "namespace": namespace, "uid": boost.uid}
    annotations = {BOOST_ANNOTATION: str(boost.value)}
    manifest = _WORKLOAD | {"metadata": metadata | {"annotations": annotations}}
    return await api.apply(manifest, manager=manager)


async def levels(api: Api) -> tuple[int, ...]:
    """Priorities that a boost must not reach from below: of all classes, and above those up to which a queue may evict
    others' to borrow."""
    found: set[int] = set()
    for kind in ("WorkloadPriorityClass", "PriorityClass"):
        async for items, _ in api.pages(kind):
            found |= {one["value"] for one in items if isinstance(one.get("value"), int)}
    async for items, _ in api.pages("ClusterQueue"):
        for one in items:
            borrowing = ((one.get("spec") or {}).get("preemption") or {}).get("borrowWithinCohort") or {}
            if isinstance(most := borrowing.get("maxPriorityThreshold"), int):
                found.add(most + 1)
    return tuple(sorted(found))


def _probe(namespace: str) -> Manifest:
    container = {"name": "probe", "image": "probe"}
    spec = {"containers": [container], "restartPolicy": "Never"}
    return {
        **_WORKLOAD,
        "metadata": {
            "generateName": "rltrain-probe-",
            "namespace": namespace,
            "annotations": {BOOST_ANNOTATION: WRONG},
        },
        "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": spec}}]},
    }
