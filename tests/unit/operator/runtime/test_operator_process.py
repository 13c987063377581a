"""A process that cannot begin ends, and does not look well meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.metrics import Metrics
from rl_operator.runtime.process import Process


class Broken:
    """A controller whose first look at the cluster fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def prime(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ApiError(403, "Forbidden", "no"), ValueError("nobody thought of it")])
def test_a_start_that_fails_is_an_end(error: Exception) -> None:
    async def start() -> tuple[bool, bool]:
        controller: Any = Broken(error)
        process = Process(cast(Api, None), cast(Controller, controller), Metrics(), 1)
        await process._start()
        return process._stop.is_set(), process._failed

    assert asyncio.run(start()) == (True, True)
