"""What a proxy of Ray Serve asks for its middlewares, on a machine that has little time for it."""

from __future__ import annotations

import time

from starlette.middleware import Middleware

SECONDS = 20.0


def middlewares() -> list[Middleware]:
    """None of its own, after a while."""
    time.sleep(SECONDS)
    return []
