"""Weights that arrive while a sampler decodes: its loop stands still only for what an engine cannot do ahead of loading."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from torch import Tensor

from rl_trainer.flow.store_pages import KEPT_BYTES, forget_store_pages
from rl_trainer.weights.transports.base import Receiver
from rl_trainer.weights.transports.publication import Publication

Loadable = TypeVar("Loadable")


class Arrival(Generic[Loadable]):
    """Receives one version at a time, on a thread of its own. Methods are for one other thread."""

    def __init__(
        self,
        receiver: Receiver,
        prepare: Callable[[Mapping[str, Tensor], int], Loadable],
        timeout: float,
        wake: Callable[[], None],
    ):
        """The way of a version.

        Args:
            receiver: gets its tensors.
            prepare: makes of them, and the version's number, what `take` gives; on the thread that receives.
            timeout: seconds in which a version is to be here.
            wake: called when it is, or has failed.
        """
        self._receiver, self._prepare, self._timeout, self._wake = receiver, prepare, timeout, wake
        self._version: int | None = None
        self._found: Future[Loadable] | None = None

    def want(self, published: Publication) -> None:
        """Begins to receive it, unless it has, or another is still arriving."""
        if self._found is not None and (published.version == self._version or not self._found.done()):
            return
        self._version, self._found = published.version, Future()
        # Not a pool's: a process that ends would wait for those.
        name = f"weights of version {published.version}"
        threading.Thread(target=self._receive, args=(published, self._found), name=name, daemon=True).start()

    def take(self, published: Publication) -> Loadable | None:
        """What was made of it, once; None: it is not here yet. Raises as `Receiver.receive` and `prepare` do."""
        self.want(published)
        found = self._found
        if found is None or published.version != self._version or not found.done():
            return None
        self._found = None
        return found.result()

    def _receive(self, published: Publication, found: Future[Loadable]) -> None:
        try:
            ready = self._prepare(self._receiver.receive(published, self._timeout), published.version)
            forget_store_pages(keep=KEPT_BYTES)
            found.set_result(ready)
        except BaseException as error:  # for the thread that asks
            found.set_exception(error)
        self._wake()
