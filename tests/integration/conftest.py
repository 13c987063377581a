"""One quiet local Ray and one kube-apiserver for all tests that ask for them (of a process of pytest)."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from cluster_runs import file, kubeconfig, namespace, run
from kube import kube
from kueue_process import queued

from rl_trainer.run.ray_session import ray_session

__all__ = ["file", "kube", "kubeconfig", "local_ray", "namespace", "queued", "run"]


def pytest_configure() -> None:
    """A shell lets what it starts in the background ignore SIGINT, down to the last descendant; these tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    with ray_session(4):
        yield
