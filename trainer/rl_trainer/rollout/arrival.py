"""Weights that arrive while a sampler decodes: its loop stands still only while it loads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from torch import Tensor

from rl_trainer.weights.transports.base import Receiver
from rl_trainer.weights.transports.publication import Publication


class Arrival:
    """Receives one version at a time, on a thread of its own. Methods are for one other thread."""

    def __init__(self, receiver: Receiver, timeout: float, wake: Callable[[], None]):
        """`timeout`: seconds in which a version is to be here; `wake`: called when it is, or has failed."""
        self._receiver, self._timeout, self._wake = receiver, timeout, wake
        self._version: int | None = None
        self._found: Future[Mapping[str, Tensor]] | None = None

    def want(self, published: Publication) -> None:
        """Begins to receive it, unless it has, or another is still arriving."""
        if self._found is not None and (published.version == self._version or not self._found.done()):
            return
        self._version, self._found = published.version, Future()
        # Not a pool's: a process that ends would wait for those.
        name = f"weights of version {published.version}"
        threading.Thread(target=self._receive, args=(published, self._found), name=name, daemon=True).start()

    def take(self, published: Publication) -> Mapping[str, Tensor] | None:
        """What has arrived of it, once; None: it is not here yet. Raises as `Receiver.receive` does."""
        self.want(published)
        found = self._found
        if found is None or published.version != self._version or not found.done():
            return None
        self._found = None
        return found.result()

    def _receive(self, published: Publication, found: Future[Mapping[str, Tensor]]) -> None:
        try:
            found.set_result(self._receiver.receive(published, self._timeout))
        except BaseException as error:  # for the thread that asks
            found.set_exception(error)
        self._wake()
