"""Objects that outlive the process that made them.

Ray frees an object when the process that owns it dies (and `ray.put(_owner=...)` was removed in Ray 2.56). An
actor *adopts* an object by running a task that returns it: the result belongs to the caller of the task, and
it is stored on the node where the task ran.
"""

from __future__ import annotations

from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_api.errors import RLTrainError


@ray.remote(num_cpus=0, num_returns=2, max_retries=0)  # retries would keep the first copy alive as lineage
def _copy(data: Any) -> tuple[bool, Any]:
    return True, data


async def adopt(ref: Any, node_id: str | None = None) -> Any:
    """A reference to a copy of `ref`'s object, owned by the calling actor, on node `node_id` if it still
    exists.

    Raises RLTrainError when the object was lost first.
    """
    place = NodeAffinitySchedulingStrategy(node_id, soft=True) if node_id else "DEFAULT"
    for last in (False, True):
        done, adopted = cast(Any, _copy).options(scheduling_strategy=place).remote(ref)
        try:
            await done
            return adopted
        except RayError as error:
            if last:
                raise RLTrainError(f"an object was lost before it could be adopted ({error})") from None
    raise AssertionError
