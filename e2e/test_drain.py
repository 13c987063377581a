"""Nodes that are drained while a run trains on them: it saves, moves, and goes on in the same attempt."""

from __future__ import annotations

import pytest
from cluster_client import PATIENCE, Cluster, wait_for
from conftest import SPARE, Train
from test_scaling import goes_on, hears, hears_of_samplers
from test_training import START_SECONDS
from training_run import ENDLESS, TrainingRun

pytestmark = pytest.mark.long

# For a checkpoint, also of a driver that gets little of two busy cores.
GRACE_SECONDS = 180


def drain(cluster: Cluster, node: str, run: TrainingRun, seconds: int) -> None:
    """As who maintains the node does it; it ends when no pod of the run is on it any more."""
    seconds = int(seconds * PATIENCE)
    options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={seconds}s")
    chosen = f"--pod-selector=rltrain.dev/run={run.name}"
    cluster.kubectl("drain", node, chosen, *options, timeout=seconds + 30)


def test_a_drained_learner_saves_and_goes_on_elsewhere_in_the_same_attempt(
    cluster: Cluster, spare_node: str, train: Train
) -> None:
    scheduling = {"preemptionGracePeriod": f"{GRACE_SECONDS}s"}
    run = train("evacuee", ENDLESS | {"learner": {"pools": ["spare"]}, "scheduling": scheduling})
    run.wait_for_checkpoint(START_SECONDS)
    assert [pod["spec"]["nodeName"] for pod in run.pods("learner")] == [spare_node]
    # The pool has another node.
    home = run.pods("head")[0]["spec"]["nodeName"]
    cluster.kubectl("label", "node", home, f"{SPARE}=true")

    step = run.step
    drain(cluster, spare_node, run, seconds=GRACE_SECONDS + 60)  # its budget would have kept it for ever

    def moved() -> bool:
        return [pod["spec"].get("nodeName") for pod in run.pods("learner")] == [home]

    wait_for("the learner is elsewhere", moved, START_SECONDS, run.describe)
    run.wait_for_step(step + 5, START_SECONDS)
    [attempt] = run.status["attempts"]
    assert (attempt["preemptions"], attempt.get("reason")) == (1, None), run.describe()
    [eviction] = run.status["evictions"]
    assert (eviction["reason"], eviction["checkpoint"]) == ("NodeDrained", "written"), eviction
    assert eviction["resumedStep"] >= max(eviction["step"], step), "at most the step under way is done again"
    assert eviction["message"].startswith(f"node {spare_node} is cordoned")
    run.suspend()


def test_a_drained_sampler_gives_its_groups_back_and_the_learner_trains_on(
    cluster: Cluster, spare_node: str, train: Train
) -> None:
    spec = ENDLESS | {"sampler": {"replicas": 2, "minReplicas": 1, "pools": ["spare"]}}
    run = train("shift", spec)
    run.wait_for_step(1, START_SECONDS)
    hears_of_samplers(cluster, run, 2)
    home = run.pods("head")[0]["spec"]["nodeName"]
    cluster.kubectl("label", "node", home, f"{SPARE}=true")

    drain(cluster, spare_node, run, seconds=120)

    def moved() -> bool:
        nodes = [pod["spec"].get("nodeName") for pod in run.pods("sampler")]
        return nodes == [home, home]

    wait_for("both samplers are elsewhere", moved, START_SECONDS, run.describe)
    goes_on(run)
    hears(cluster, run, "is told to go with its pod and has given ")
    assert run.status.get("evictions", []) == [], "no eviction of the run"
