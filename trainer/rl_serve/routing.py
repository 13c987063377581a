"""How Ray Serve's proxies choose a replica: that of the prompt's beginning; where it has none, the less busy of two."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from rl_serve.prefixes import ranked


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types for it
    """For engines that keep what they have computed for prompts; `rl_serve.proxy.Prefixes` names the beginnings.

    A key comes as the request's session: Ray Serve gives no more of a request to what chooses its replica.
    """

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
        loads = {replica: self._load(replica) for replica in candidate_replicas}
        return [[one] for one in ranked(key, loads, lambda replica: str(replica.replica_id.unique_id))]

    def _load(self, replica: RunningReplica) -> int:
        """Requests that it has; one that has told nothing for a while has none of this proxy's."""
        found: Any = self.replica_queue_len_cache.get(replica.replica_id)
        return found or 0
