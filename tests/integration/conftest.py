"""One quiet local Ray per test module that asks for it, one kube-apiserver for all."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from kube import kube

from rl_trainer.ray_session import ray_session

__all__ = ["kube", "local_ray"]


def pytest_configure() -> None:
    """A shell lets what it starts in the background ignore SIGINT, down to the last descendant; these tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    with ray_session(4):
        yield
