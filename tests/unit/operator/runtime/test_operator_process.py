"""A process that cannot begin ends, and does not look well meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.key import BadKey
from rl_operator.runtime.metrics import Metrics
from rl_operator.runtime.process import Process


class Broken:
    """A controller whose first look at the cluster fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.cluster = SimpleNamespace(key=b"")

    async def prime(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error", [ApiError(403, "Forbidden", "no"), ValueError("nobody thought of it"), BadKey("it is short")]
)
def test_a_start_that_fails_is_an_end(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> tuple[bool, bool]:
        async def key() -> bytes:
            if isinstance(error, BadKey):
                raise error
            return b"key"

        controller: Any = Broken(error)
        process = Process(cast(Api, None), cast(Controller, controller), Metrics(), 1, key)
        await process._start()
        return process._stop.is_set(), process._failed

    assert asyncio.run(start()) == (True, True)
    (record,) = caplog.records
    assert record.message == str(error)
    assert bool(record.exc_info) is isinstance(error, ValueError), "a sentence needs no traceback"
