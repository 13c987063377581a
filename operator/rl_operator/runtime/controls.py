"""What the controls of policy services are asked and told. One that does not answer once or twice is no news."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rl_operator.drivers.client import DriverError, Drivers
from rl_operator.drivers.control import ask_control, tell_control
from rl_operator.model.names import Key
from rl_operator.model.seen import Pod
from rl_operator.model.service import Control, RayService, ServiceWorld, Wish
from rl_operator.model.tokens import CONTROL, derive_token
from rl_operator.render.service_config import CONTROL_PREFIX, SERVE_PORT

LOG = logging.getLogger("rl_operator")

_BEARABLE: Final = 2
"""So many requests to a control may fail in a row before anybody is told."""


@dataclass
class Heard:
    """Of one service: what the control of the cluster with the traffic has said last, the head's pod that it is of, what
    that of the cluster has said that is to have the traffic, requests in a row without an answer, and the sentence where
    these are too many."""

    control: Control | None = None
    head: str = ""
    coming: Control | None = None
    silent: int = 0
    error: str = ""


class Controls:
    """The way to them. `key`: gives the operator's, from which each has its token: it is read later than this is made."""

    def __init__(self, drivers: Drivers, key: Callable[[], bytes]) -> None:
        self._drivers, self._key = drivers, key

    async def ask(
        self, place: Key, uid: str, ray: RayService, world: ServiceWorld, run: str | None, heard: Heard
    ) -> None:
        """What the control of the cluster with the traffic says.

        Args:
            place: of the service.
            uid: its own.
            ray: its RayService.
            world: its pods.
            run: the run that it follows.
            heard: gets the answer.
        """
        cluster = ray.active or ray.pending
        if heard.control is not None and heard.control.cluster != cluster:
            heard.control = None
        head = world.head_of(cluster)
        if head is None:
            heard.control = None
            return
        if head.name != heard.head:
            # Another head knows nothing of the copies that the one before it had: they end with that one.
            heard.control, heard.head = None, head.name
        try:
            heard.control = await self._asked(place, uid, head, cluster, run)
        except DriverError as error:
            # Before KubeRay calls it ready, it is starting: that is no news.
            heard.silent = heard.silent + 1 if ray.ready else 0
            if heard.silent > _BEARABLE:
                heard.control, heard.error = None, str(error)
        else:
            heard.silent, heard.error = 0, ""

    async def ask_coming(
        self, place: Key, uid: str, ray: RayService, world: ServiceWorld, run: str | None, heard: Heard
    ) -> None:
        """The same of the cluster that is to have the traffic: nothing, while it starts."""
        head = world.head_of(ray.pending) if ray.active and ray.pending else None
        if head is None:
            heard.coming = None
            return
        with contextlib.suppress(DriverError):
            heard.coming = await self._asked(place, uid, head, ray.pending, run)

    async def bring(self, place: Key, uid: str, world: ServiceWorld, wish: Wish) -> None:
        """Bring a wish to the control. Where it fails it is decided upon again."""
        head = world.head_of(wish.cluster)
        if head is None:
            return
        token = derive_token(self._key(), uid, 0, CONTROL)
        try:
            await tell_control(self._drivers, self._url(place, head), token, wish)
        except DriverError as error:
            LOG.info(
                "the control of a service does not take %r: %s", wish.path, error, extra=about_service(place)
            )

    async def _asked(self, place: Key, uid: str, head: Pod, cluster: str, run: str | None) -> Control:
        token, now = derive_token(self._key(), uid, 0, CONTROL), datetime.now(UTC).replace(microsecond=0)
        return await ask_control(self._drivers, self._url(place, head), token, cluster, run, now)

    def _url(self, place: Key, head: Pod) -> str:
        return self._drivers.url(place, head.ip, SERVE_PORT) + CONTROL_PREFIX


def about_service(place: Key) -> dict[str, Any]:
    """What a line of the log says of a service besides its message."""
    return {"namespace": place[0], "service": place[1]}
