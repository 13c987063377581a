"""A Ray cluster of two nodes in a process of its own: the tests' own process has one Ray for all tests."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from rl_trainer.run.local_ray.processes import only_needed_processes, patient

FIRST: dict[str, Any] = {"num_cpus": 0, "resources": {"first": 0.1}}
SECOND: dict[str, Any] = {"num_cpus": 0, "resources": {"second": 0.1}}
"""Options of an actor on the first or the second node."""


def in_a_process(work: Callable[..., None], *arguments: Any, timeout: float = 240.0) -> None:
    """Calls `work`, a function of a module, in a new process; what it raises is on stderr, and fails the test."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    with pytest.MonkeyPatch.context() as environment:  # Ray reads it when it is imported
        for name in [name for name in os.environ if name.startswith(("RAY_", "RLTRAIN_"))]:
            environment.delenv(name)  # a local Ray of an earlier test: its token, its fork server
        # Ray gives a silent node half a minute; here its processes are just gone.
        environment.setenv("RAY_health_check_initial_delay_ms", "1000")
        environment.setenv("RAY_health_check_period_ms", "1000")
        environment.setenv("RAY_health_check_failure_threshold", "5")
        process.start()
    process.join(timeout)
    late = process.is_alive()
    process.kill()
    process.join()
    assert (late, process.exitcode) == (False, 0), "its traceback is on stderr"


@contextmanager
def two_nodes(first: Collection[str] = (), second: Collection[str] = ()) -> Iterator[Callable[[], None]]:
    """Connects this process to the first of them; yields what ends the second. `first`, `second`: roles for which they are
    marked, as pods are; then a run has a place for one actor of each."""
    cluster, size = Cluster(), {"object_store_memory": 80 * 2**20}
    try:
        with patient(), only_needed_processes():
            marks = dict.fromkeys(("first", *first), 1)
            cluster.add_node(num_cpus=2, resources=marks, include_dashboard=False, **size)
            other = cluster.add_node(num_cpus=2, resources=dict.fromkeys(("second", *second), 1), **size)
            ray.init(address=cluster.address, log_to_driver=False)

        def end_the_second() -> None:
            cluster.remove_node(other, allow_graceful=False)
            cluster.wait_for_nodes(timeout=60)

        yield end_the_second
    finally:
        ray.shutdown()
        cluster.shutdown()
