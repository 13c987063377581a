"""One quiet local Ray and one kube-apiserver for all tests that ask for them (of a process of pytest)."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import together
from cluster_runs import file, kubeconfig, namespace, run
from kube import kube
from kueue_process import queued
from together import ON_A_CLUSTER, ON_A_CLUSTER_WITH_KUEUE

from rl_trainer.run.ray_session import ray_session

# Files whose tests ask for what is started once.
SHARED = {"queued": ON_A_CLUSTER_WITH_KUEUE, "kube": ON_A_CLUSTER}

__all__ = ["file", "kube", "kubeconfig", "local_ray", "namespace", "queued", "run"]


def pytest_configure() -> None:
    """A shell lets what it starts in the background ignore SIGINT, down to the last descendant; these tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share a cluster first, one after the other: it is started once and ends with them.

    Raises:
        pytest.UsageError: a test asks for a cluster in a file that is not among those that share it.
    """
    for item in items:
        for fixture, files in SHARED.items():
            if fixture in getattr(item, "fixturenames", ()) and item.path.name not in files:
                raise pytest.UsageError(
                    f"{item.path.name} asks for {fixture}: name it in {together.__file__}"
                )
    items.sort(key=lambda item: [item.path.name not in files for files in SHARED.values()])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """What is shared ends with the last test that it is for: idle servers would take their part of the processor.

    A test that asks for it later all the same starts it again.
    """
    try:
        yield
    finally:
        name = nextitem.path.name if nextitem is not None else ""
        over = [fixture for fixture, files in SHARED.items() if name not in files]
        if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
            over.append("local_ray")
        for fixture in over:
            for definition in item.session._fixturemanager.getfixturedefs(fixture, item) or ():
                definition.finish(item._request)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    with ray_session(4):
        yield
