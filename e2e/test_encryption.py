"""A run whose Ray is encrypted: nobody without its certificates is answered, and samplers that come later have theirs."""

from __future__ import annotations

import json

import pytest
from cluster_client import Cluster
from conftest import Train
from test_scaling import hears_of_samplers, wait_for_samplers, wind_up
from test_training import START_SECONDS
from training_run import ENDLESS
from who_is_answered import ENCRYPTED, PROGRAM

_GCS, _CLIENT = "6379", "10001"


@pytest.mark.long
def test_a_run_trains_with_encryption(cluster: Cluster, train: Train) -> None:
    # Its second sampler is asked for when it trains.
    run = train("sealed", ENDLESS | {"scheduling": {"encryption": True}, "sampler": {"replicas": 2}})
    run.wait_for_step(1, START_SECONDS)
    wait_for_samplers(run, 2)
    hears_of_samplers(cluster, run, 2)
    [head] = run.pods("head")
    first, second = sorted(run.pods("sampler"), key=lambda pod: pod["metadata"]["creationTimestamp"])

    def inside(pod: str, *command: str) -> str:
        return cluster.answered("exec", pod, "-n", run.namespace, "-c", "ray", "--", *command)

    for pod in (head, first, second):
        name, address = pod["metadata"]["name"], head["status"]["podIP"]
        assert inside(name, "printenv", "RAY_USE_TLS") == "1\n"
        for port in (_GCS, _CLIENT):
            assert json.loads(inside(name, "python", "-c", PROGRAM, address, port)) == ENCRYPTED, (name, port)
        assert inside(name, "ls", "/etc").split().count("rltrain-seed") == 0, (
            "what signs is for another container"
        )

    assert len(run.status["attempts"]) == 1, run.describe()
    # The attempt that comes then has another authority.
    wind_up(run)
