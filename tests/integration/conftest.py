"""One quiet local Ray per test module that asks for it, one kube-apiserver for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kube import kube

from rl_trainer.ray_session import ray_session

__all__ = ["kube", "local_ray"]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    with ray_session(4):
        yield
