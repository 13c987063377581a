"""Objects that outlive the process, and the node, that made them.

Ray frees an object when the process that owns it dies (and `ray.put(_owner=...)` was removed in Ray 2.56), and loses it
with the node that holds its only copy. An actor *adopts* an object by putting it anew: then it belongs to the actor, and is
on the actor's node.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError

from rl_api.errors import RLTrainError
from rl_trainer.error_text import first_line


async def adopt(ref: Any) -> Any:
    """A reference to a copy of `ref`'s object, owned by the calling actor and on its node.

    Raises RLTrainError when the object was lost first.
    """
    try:
        value = await ref
    except RayError as error:
        raise RLTrainError(f"an object was lost before it could be adopted ({first_line(error)})") from None
    # It waits where the store must spill first; the actor does not.
    return await asyncio.to_thread(ray.put, value)
