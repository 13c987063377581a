"""Leader election by Lease: of several operators one acts, and another takes over when it is gone.

Our own, because the one of the client library renews without a deadline of its own: a renewal that hangs would keep
a leader acting after its lease has run out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.names import Manifest

LOG = logging.getLogger("rl_operator")


@dataclass(frozen=True)
class Times:
    """Seconds: how long a lease holds, how long its holder may fail to renew it, and how often it tries."""

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


class LeaderLost(Exception):
    """The lease could not be renewed in time: somebody else may hold it by now."""


class Leader:
    """One candidate."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self.identity, self._times, self._clock = identity, times or Times(), clock
        self._seen: tuple[tuple[str, str], float] = ("", ""), float("-inf")
        """What the lease said, and when we first saw it say so: clocks of other machines do not matter."""
        self._renewed = float("-inf")

    @property
    def left(self) -> float:
        """Seconds for which nobody else can hold the lease; 0 or less: somebody may."""
        return self._renewed + self._times.lease - self._clock()

    async def acquire(self) -> None:
        """Wait until we hold the lease."""
        while not await self._try():
            await asyncio.sleep(self._times.retry)
        LOG.info("leader: %s", self.identity)

    async def keep(self) -> None:
        """Renew the lease until that fails for too long.

        Raises:
            LeaderLost: it did; stop acting at once.
        """
        while True:
            await asyncio.sleep(self._times.retry)
            if not await self._try() and self._clock() - self._renewed > self._times.renew:
                raise LeaderLost(f"the lease {self._name} could not be renewed for {self._times.renew:g} s")

    async def release(self) -> None:
        """Give the lease up, so that another one need not wait for its end."""
        self._renewed = float("-inf")
        try:
            async with asyncio.timeout(self._times.retry):
                lease = await self._api.find("Lease", self._namespace, self._name)
                if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                    await self._write(lease["spec"] | {"holderIdentity": ""}, lease)
        except (ApiError, TimeoutError) as error:
            LOG.info("the lease was not given up: %s", error)

    async def _try(self) -> bool:
        """Take or renew the lease; whether it is ours now."""
        started = self._clock()
        try:
            async with asyncio.timeout(self._times.renew / 2):
                done = await self._take(started)
        except (ApiError, TimeoutError) as error:
            LOG.warning("lease %s: %s", self._name, str(error) or "no answer in time")
            return False
        if done:
            self._renewed = started
        return done

    async def _take(self, now: float) -> bool:
        lease = await self._api.find("Lease", self._namespace, self._name)
        if lease is None:
            await self._write(self._spec({}), None)
            return True
        spec = lease.get("spec") or {}
        record = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or ""))
        if self._seen[0] != record:
            self._seen = record, now
        lasts = float(spec.get("leaseDurationSeconds") or self._times.lease)
        if record[0] not in ("", self.identity) and now - self._seen[1] < lasts:
            return False
        await self._write(self._spec(spec), lease)
        return True

    async def _write(self, spec: Mapping[str, Any], read: Manifest | None) -> None:
        """Refused when the lease is no longer as it was read, or when there was none and is one now."""
        metadata = {"name": self._name, "namespace": self._namespace}
        if read is not None:
            metadata["resourceVersion"] = read["metadata"]["resourceVersion"]
        manifest: Manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        await self._api.apply(manifest | {"metadata": metadata, "spec": dict(spec)}, new=read is None)

    def _spec(self, old: Mapping[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = old.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._times.lease),
            "acquireTime": old.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if ours else 1),
        }
