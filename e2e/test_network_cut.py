"""The network between pods is cut, with no connection closed: training goes on without who is behind it, then with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster_client import Cluster
from conftest import Train
from test_scaling import goes_on, hears, hears_of_samplers, wait_for_samplers
from test_training import START_SECONDS
from training_run import ENDLESS

pytestmark = pytest.mark.long


@contextmanager
def cut_off(cluster: Cluster, pod: dict[str, Any]) -> Iterator[None]:
    """Nothing reaches or leaves the pod: the node's end of its cable is down. Skips where nodes are no containers."""
    name, space, node = pod["metadata"]["name"], pod["metadata"]["namespace"], pod["spec"]["nodeName"]
    peer = cluster.kubectl(
        "exec", name, "-n", space, "-c", "ray", "--", "cat", "/sys/class/net/eth0/iflink"
    ).stdout.strip()
    links = subprocess.run(
        ["docker", "exec", node, "ip", "-o", "link"], capture_output=True, text=True, timeout=180, check=False
    )
    if links.returncode:
        pytest.skip(f"node {node} is no container of this Docker")
    [link] = [
        line.split(": ")[1].partition("@")[0]
        for line in links.stdout.splitlines()
        if line.startswith(f"{peer}: ")
    ]

    def turn(way: str) -> None:
        subprocess.run(
            ["docker", "exec", node, "ip", "link", "set", "dev", link, way], timeout=180, check=way == "down"
        )

    turn("down")
    try:
        yield
    finally:
        turn("up")  # fails where the pod has gone meanwhile


def test_a_sampler_that_is_cut_off_is_given_up_and_comes_back(cluster: Cluster, train: Train) -> None:
    """The other one samples its groups: that none is lost or comes twice is looked at after every scenario."""
    sampler = {"replicas": 2, "minReplicas": 1}
    # On a busy node torch alone takes half a minute to be imported, and a learner that is silent ends the attempt.
    run = train("cut-off", ENDLESS | {"sampler": sampler, "retry": {"livenessTimeout": "60s"}})
    run.wait_for_step(1, START_SECONDS)
    hears_of_samplers(cluster, run, 2)
    with cut_off(cluster, run.pods("sampler")[0]):
        hears(cluster, run, "unfinished groups are sampled again")
        goes_on(run)
    wait_for_samplers(run, 2)
    goes_on(run)
    run.suspend()
