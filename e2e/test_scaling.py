"""Samplers come and go while a run trains: lost, scaled up, scaled down, and the attempt goes on."""

from __future__ import annotations

import pytest
from cluster_client import Cluster, wait_for
from conftest import Train
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS, TrainingRun

pytestmark = pytest.mark.long

# From a pod that is wanted to a sampler that takes part: the pod starts, Ray finds it, torch and the model are loaded.
JOIN_SECONDS = 180


def said(cluster: Cluster, run: TrainingRun, *, check: bool = True) -> str:
    """What the driver has written so far; `check`: it can be read, else what there is of it."""
    [head] = run.pods("head")
    script = "cat /tmp/ray/session_latest/logs/job-driver-*.log"
    return cluster.kubectl(
        *("exec", head["metadata"]["name"], "-n", run.namespace, "-c", "ray", "--", "bash", "-c", script),
        check=check,
    ).stdout


def hears(cluster: Cluster, run: TrainingRun, *words: str) -> None:
    """Returns when the driver has said one of these."""

    def heard() -> bool:
        # Of many looks one that a busy node does not answer is none.
        text = said(cluster, run, check=False)
        return any(each in text for each in words)

    def known() -> str:
        return f"{run.describe()}; it said: {said(cluster, run)[-3000:]}"

    # Each look is a program in the pod: often, they would be a good part of what two cores do.
    wait_for(f"the driver says {' or '.join(map(repr, words))}", heard, JOIN_SECONDS, known, every=2.0)


def hears_of_samplers(cluster: Cluster, run: TrainingRun, count: int) -> None:
    """Returns when that many have taken part: they have come one by one, or were there when training began."""
    hears(cluster, run, f"joined: {count} samplers now", f"{count} samplers from the beginning")


def wait_for_samplers(run: TrainingRun, count: int) -> None:
    """Returns when the status shows that many samplers, all of them ready."""
    run.wait_for_roles({"sampler": count}, JOIN_SECONDS)


def goes_on(run: TrainingRun) -> None:
    """Returns when the first attempt has trained a few steps more."""
    run.wait_for_step(run.step + 5, 120)
    assert len(run.status["attempts"]) == 1, run.describe()


def wind_up(run: TrainingRun) -> None:
    """Ends the run where it is, with another attempt."""
    run.wind_up(run.suspend())
    run.patch({"suspend": False})
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)


def test_samplers_scale_up_and_down_while_a_run_trains(cluster: Cluster, train: Train) -> None:
    # It begins with one, as sampler.minReplicas says nothing else.
    run = train("tides", ENDLESS | {"sampler": {"replicas": 2}})
    run.wait_for_step(1, START_SECONDS)
    wait_for_samplers(run, 2)
    hears_of_samplers(cluster, run, 2)
    goes_on(run)

    young = max(run.pods("sampler"), key=lambda pod: pod["metadata"]["creationTimestamp"])
    cluster.kubectl("scale", f"rlrun/{run.name}", "-n", run.namespace, "--replicas=1")
    wait_for_samplers(run, 1)
    wait_for("its pod is gone", lambda: len(run.pods("sampler")) == 1, 60, run.describe)
    assert run.pods("sampler")[0]["metadata"]["uid"] != young["metadata"]["uid"], "the older one went"
    hears(cluster, run, "has gone with its node, 1 left")
    goes_on(run)

    cluster.kubectl("scale", f"rlrun/{run.name}", "-n", run.namespace, "--replicas=3")
    wait_for_samplers(run, 3)
    hears(cluster, run, "joined: 3 samplers now")
    goes_on(run)
    wind_up(run)


def test_killed_samplers_are_no_end_of_an_attempt(cluster: Cluster, train: Train) -> None:
    run = train("survivor", ENDLESS)
    run.wait_for_step(2, START_SECONDS)
    # The only one: training pauses until KubeRay has made another pod, perhaps before Ray misses the first.
    run.kill_pod("sampler")
    hears(cluster, run, "sampler 0 has gone with its node")
    hears(cluster, run, " joined: ")
    goes_on(run)
    run.suspend()
