"""How Ray Serve's proxies choose a replica: that of the prompt's beginning; where it has none, the less busy of two."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from rl_serve.prefixes import ranked


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types for it
    """For engines that keep what they have computed for prompts; `rl_serve.proxy.Prefixes` names the beginnings.

    A key comes as the request's session: Ray Serve gives no more of a request to what chooses its replica.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Called by Ray Serve once."""
        # Replica and Ray Serve's future of each request that has a key, by its id, from its being chosen until it is done.
        # What Ray Serve knows of replicas is behind: it may choose for all that wait before it sends one of them.
        self._own: dict[str, tuple[ReplicaID, Any]] = {}

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Ray Serve, on any thread."""
        self._own.pop(internal_request_id, None)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One replica after the other, or two of which Ray Serve takes the one with fewer requests."""
        key = ""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            key = pending_request.metadata.session_id
        if not key:
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]
        own = self._of_this_proxy()
        loads = {replica: self._load(replica, own[replica.replica_id]) for replica in candidate_replicas}
        found = ranked(key, loads, lambda replica: str(replica.replica_id.unique_id))
        if found and pending_request is not None:
            self._own[pending_request.metadata.internal_request_id] = (
                found[0].replica_id,
                pending_request.future,
            )
        return [[one] for one in found]

    def _load(self, replica: RunningReplica, own: int) -> int:
        """Requests that it has, `own` of them from this proxy."""
        found: Any = self.replica_queue_len_cache.get(replica.replica_id)
        return max(found or 0, own)

    def _of_this_proxy(self) -> Counter[ReplicaID]:
        """Requests by replica; those that were given up before they were sent are none."""
        found: Counter[ReplicaID] = Counter()
        for request, (replica, future) in list(self._own.items()):
            if future.cancelled():
                self._own.pop(request, None)
            else:
                found[replica] += 1
        return found
