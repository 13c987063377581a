"""One quiet local Ray and one kube-apiserver for all tests that ask for them (of a process of pytest)."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from cluster_runs import file, kubeconfig, namespace, run
from kube import kube
from kueue_process import queued
from together import ON_A_CLUSTER_WITH_KUEUE

from rl_trainer.run.ray_session import ray_session

__all__ = ["file", "kube", "kubeconfig", "local_ray", "namespace", "queued", "run"]


def pytest_configure() -> None:
    """A shell lets what it starts in the background ignore SIGINT, down to the last descendant; these tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need Kueue first, one after the other: its cluster is started once and ends with them."""
    items.sort(key=lambda item: not needs_kueue(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """What is shared ends with the last test that it is for: idle servers would take their part of the processor.

    A test that asks for it later all the same starts it again.
    """
    try:
        yield
    finally:
        over = ["queued"] if nextitem is None or not needs_kueue(nextitem) else []
        if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
            over += ["kube", "local_ray"]
        for name in over:
            for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
                fixture.finish(item._request)


def needs_kueue(item: pytest.Item) -> bool:
    """Whether its file is one of those on a cluster with Kueue."""
    return item.path.name in ON_A_CLUSTER_WITH_KUEUE


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    with ray_session(4):
        yield
