"""Which policy a replica serves, loads and shall serve: the newest wish counts, and until then the old one answers.

All of it runs on one event loop; what takes long is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from rl_api.errors import RLTrainError
from rl_serve.arguments import PolicyRef
from rl_serve.faults import passes
from rl_trainer.error_text import first_line

logger = logging.getLogger(__name__)

# After a failure that another try may mend: the head is being replaced, for instance.
AGAIN_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05


class Server(Protocol):
    """What answers with one policy."""

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""

    def close(self) -> None:
        """End it; may take seconds."""


S = TypeVar("S", bound=Server)


class Holder(Generic[S]):
    """The policy of one replica.

    Args:
        load: a server for a policy. It is given the one that serves now, and may change that one's weights and return it.
        freed: called after an old one was closed.

    Attributes:
        server, served: who answers, and with which policy; None: there is none yet.
        loading: version of the policy that is being loaded, None: none is.
        error: why the policy that is wanted is not served, None: nothing is known to be wrong.
        retryable: whether that says nothing about the policy, which may be loaded another time.
    """

    def __init__(
        self,
        load: Callable[[PolicyRef, S | None], Awaitable[S]],
        freed: Callable[[], None] = lambda: None,
        again: float = AGAIN_SECONDS,
    ) -> None:
        self._load, self._freed, self._again = load, freed, again
        self.server: S | None = None
        self.served: PolicyRef | None = None
        self.loading: str | None = None
        self.error: str | None = None
        self.retryable = False
        self._wanted: PolicyRef | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._retired: set[asyncio.Task[None]] = set()

    def want(self, policy: PolicyRef | None) -> None:
        """Serve this one as soon as it is loaded; None: no one, at once. Returns immediately."""
        if policy == self._wanted and self.error is None:
            return
        self._wanted, self.error = policy, None
        self._changed.set()
        if policy is None:
            self._serve(None, None)
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def settled(self) -> None:
        """Wait until what is wanted is served, or will never be (`error` says why)."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End everything, also what is under way."""
        self.want(None)
        for task in [*([self._task] if self._task else []), *self._retired]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _work(self) -> None:
        """Until what is wanted is served, or will never be."""
        while (policy := self._wanted) is not None and policy != self.served:
            self._changed.clear()
            self.loading = policy.version
            try:
                server = await self._load(policy, self.server)
            except Exception as error:
                if policy == self._wanted:
                    self.error, self.retryable = _sentence(policy, error), passes(error)
                    self.loading = None
                    if not self.retryable:
                        return
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), self._again)
            else:
                if policy == self._wanted or server is self.server:
                    self._serve(server, policy)
                else:
                    self._retire(server)
            finally:
                self.loading = None

    def _serve(self, server: S | None, policy: PolicyRef | None) -> None:
        old, self.server, self.served, self.error = self.server, server, policy, None
        if old is not None and old is not server:
            self._retire(old)

    def _retire(self, server: S) -> None:
        task = asyncio.create_task(self._end(server))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    async def _end(self, server: S) -> None:
        """Every request has a deadline of its own, so this ends."""
        try:
            while not server.idle:
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await asyncio.to_thread(server.close)
            del server
            self._freed()


def _sentence(policy: PolicyRef, error: Exception) -> str:
    if isinstance(error, RLTrainError):
        return str(error)
    logger.error("%s could not be loaded", policy.version, exc_info=error)
    return f"{policy.version} could not be loaded: {type(error).__name__}: {first_line(error)}"
