"""List and watch: one kind in one place is read whole, then followed from there on, for ever.

With the client alone, and not with Kopf's watches: those tell nothing of what went while none was open, ask for no
bookmarks and list without pages, so that all objects had to be listed again every minute to repair what was missed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Final, Protocol

from rl_operator.kube.client import Api
from rl_operator.kube.wire import BREATH_SECONDS, WATCH_SECONDS, ApiError
from rl_operator.model.names import Manifest

LOG = logging.getLogger("rl_operator")

_STUCK_SECONDS: Final = 3.0 * WATCH_SECONDS
_UNKNOWN_SECONDS: Final = 5.0
"""How often a kind that the cluster does not know is asked for: KubeRay may be installed at any time."""
_LONGEST_PAUSE: Final = 8.0
_DENIED_SECONDS: Final = 120.0
"""How often a kind is asked for that the operator may do without: its rights may be given to it at any time. So seldom that
no alert takes it for a fault."""


class Sink(Protocol):
    """Where what is seen goes."""

    def seen(self, kind: str, change: str, document: Manifest) -> None:
        """An object was ADDED, MODIFIED, or is there; or it was DELETED."""

    def listed(self, kind: str, namespace: str | None, there: set[str] | None, version: int) -> None:
        """At `version` only the objects with these uids were there (None: the cluster does not know the kind)."""


class Watch:
    """One kind of objects, in one namespace or in all."""

    def __init__(
        self,
        api: Api,
        sink: Sink,
        kind: str,
        namespace: str | None = None,
        labels: str = "",
        *,
        optional: bool = False,
    ) -> None:
        """Prepare; `optional`: that it may not be read is no fault, and looked at again now and then."""
        self._api, self._sink, self.kind, self._namespace = api, sink, kind, namespace
        self._labels, self.optional = labels, optional
        self._version = ""
        self._moved = math.inf

    @property
    def problem(self) -> str:
        """What is wrong, for the liveness probe: nothing was heard, not even an error, though every wait has an end."""
        silent = time.monotonic() - self._moved
        return f"the watch of {self.kind}s hangs for {silent:.0f} s" if silent > _STUCK_SECONDS else ""

    async def run(self) -> None:
        """List, unless that was done, and watch until cancelled."""
        failures = 0
        while True:
            self._moved = time.monotonic()
            try:
                if not self._version:
                    await self.list()
                if self._version:
                    await self._follow()
                failures = 0
            except ApiError as error:
                if error.forbidden and self.optional:
                    if self._version:
                        LOG.warning("%ss are not seen any more: %s", self.kind, error)
                        self._version = ""
                        # What was seen may not be so any more.
                        self._sink.listed(self.kind, self._namespace, None, 0)
                    await asyncio.sleep(_DENIED_SECONDS)
                    continue
                failures += 1
                if error.gone or error.missing:
                    self._version = ""
                    if failures == 1:
                        continue
                LOG.log(
                    logging.WARNING if failures == 3 else logging.INFO,
                    "%ss cannot be watched: %s",
                    self.kind,
                    error,
                )
            pause = min(0.25 * 2 ** min(failures, 9), _LONGEST_PAUSE) if failures else BREATH_SECONDS
            await asyncio.sleep(pause if self._version or failures else _UNKNOWN_SECONDS)

    async def list(self) -> None:
        """Read everything once, and forget what is not there any more.

        Raises:
            ApiError: it cannot be read now.
        """
        there: set[str] = set()
        version = ""
        try:
            async for items, at in self._api.pages(self.kind, self._namespace, labels=self._labels):
                version = at
                for item in items:
                    there.add(str(item["metadata"].get("uid", "")))
                    self._sink.seen(self.kind, "LISTED", item)
        except ApiError as error:
            if not error.missing:
                raise
            self._sink.listed(self.kind, self._namespace, None, 0)
            return
        self._sink.listed(self.kind, self._namespace, there, int(version) if version.isdigit() else 0)
        self._version = version

    async def _follow(self) -> None:
        events = self._api.watch(self.kind, self._namespace, self._version, labels=self._labels)
        async for change, document in events:
            self._moved = time.monotonic()
            self._version = str(document["metadata"].get("resourceVersion") or self._version)
            if change != "BOOKMARK":
                self._sink.seen(self.kind, change, document)
