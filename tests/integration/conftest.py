"""One quiet local Ray per test module that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rl_trainer.ray_session import ray_session


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    with ray_session(4):
        yield
