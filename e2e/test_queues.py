"""Two teams and one quota: who must go saves first, waits, goes on, and ends as one that nobody disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cluster_client import PATIENCE, Cluster, wait_for
from conftest import SYSTEM, TRAINER_IMAGE, Train
from kueue import WORKLOADS, admitted, cluster_queue, gone, is_admitted, urgent
from test_scaling import goes_on, wait_for_samplers
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS, TrainingRun

pytestmark = pytest.mark.long

ONE_RUN = "400m"
"""What head, learner and sampler ask for together."""

# For a checkpoint, also of a driver that gets little of two busy cores.
GRACE = 60

# What a run trains on, and so its weights, depends on nothing but its seed.
EXACT: dict[str, Any] = {
    "buffer": {"maxStaleness": 0},
    "checkpoint": {"everySteps": 1000},
    "stop": {"maxSteps": 150},
}


def in_queue(queue: str, priority: str, **scheduling: Any) -> dict[str, Any]:
    """Spec of a run in a queue."""
    return {"scheduling": {"queue": queue, "workloadPriorityClass": f"e2e-{priority}", **scheduling}}


def weights(run: TrainingRun) -> dict[str, str]:
    """Hashes of the files of the policy in the run's last checkpoint."""
    step = run.last_checkpoint(TRAINER_IMAGE)
    manifest = json.loads(run.read_file(f"checkpoints/step-{step:08d}/manifest.json", TRAINER_IMAGE))
    found = {name: one["sha256"] for name, one in manifest["files"].items() if name.startswith("model/")}
    assert any(name.endswith(".safetensors") for name in found), manifest
    return found


def evictions(run: TrainingRun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.status.get("evictions") or []
    return found


def evicted(run: TrainingRun, number: int, field: str, seconds: float) -> dict[str, Any]:
    """An eviction, once this field of it is known."""

    def look() -> dict[str, Any] | None:
        found = evictions(run)
        return found[number] if len(found) > number and field in found[number] else None

    return wait_for(f"eviction {number} of {run.name} has {field}", look, seconds, run.describe)


def comes_back(run: TrainingRun, number: int, saved: int) -> None:
    """Returns when it trains again after that eviction, from what it had saved."""
    # On a busy node it has trained on for a moment after it had saved: its last step alone is no sign.
    reached = run.step
    assert evicted(run, number, "resumedTime", START_SECONDS)["resumedStep"] == saved
    run.wait_for_step(max(saved, reached) + 2, START_SECONDS)


def test_who_must_go_saves_first_and_ends_as_one_that_was_not_disturbed(
    cluster: Cluster,
    namespace: str,
    train: Train,
    train_elsewhere: Train,
    record_property: Callable[[str, Any], None],
) -> None:
    calm = train_elsewhere("calm", EXACT)
    other, queue = calm.namespace, namespace
    with cluster_queue(cluster, queue, [namespace, other], ONE_RUN):
        run = train("patient", EXACT | in_queue(queue, "low", preemptionGracePeriod=f"{GRACE}s"))
        run.wait_for_step(3, START_SECONDS)
        assert run.status["queue"]["flavors"] == [queue]

        # Another team's run, which matters more.
        urgent_run = train_elsewhere("urgent", {"stop": {"maxSteps": 3}} | in_queue(queue, "high"))
        first = evicted(run, 0, "releasedTime", 120)
        assert (first["reason"], first["checkpoint"]) == ("Preempted", "written")
        assert f"a workload of namespace {other}" in first["message"]
        record_property("seconds_to_release", first["secondsToRelease"])
        assert not run.pods(), "quota was given back while pods were there"
        saved = int(run.status["checkpoint"]["step"])
        assert saved >= first["step"], "a step was lost that was known when the queue wanted its quota back"
        run.wait_for_message("1st of 1 in", "more cpu must come free", seconds=60)
        urgent_run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
        comes_back(run, 0, saved)

        # The operator dies between the driver's answer and the quota's way back.
        urgent(cluster, "second", other, queue, "100m")
        evicted(run, 1, "stoppedTime", 60)
        cluster.kubectl("delete", "pods", "--all", "-n", SYSTEM, "--grace-period=0", "--force")
        admitted(cluster, "second", other, 180)
        second = evicted(run, 1, "releasedTime", 60)
        assert second["checkpoint"] == "written"
        assert len(evictions(run)) == 2
        saved = int(run.status["checkpoint"]["step"])
        gone(cluster, "second", other)
        comes_back(run, 1, saved)

        # A driver that never answers has its grace, and no more.
        [head] = run.pods("head")
        stop = "kill -STOP $(pgrep -f '[r]ltrain run')"
        cluster.kubectl(
            "exec", head["metadata"]["name"], "-n", namespace, "-c", "ray", "--", "bash", "-c", stop
        )
        urgent(cluster, "third", other, queue, "100m")
        third = evicted(run, 2, "releasedTime", 180)
        assert third["checkpoint"] == "late"
        assert GRACE <= third["secondsToRelease"] < GRACE + 90 * PATIENCE
        admitted(cluster, "third", other, 30)
        gone(cluster, "third", other)
        run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)

        assert [(one["number"], one["preemptions"]) for one in run.status["attempts"]] == [(1, 3)]
        calm.wait_for_condition("Succeeded", TRAIN_SECONDS)
        assert weights(run) == weights(calm)
        facts = cluster.get(WORKLOADS, run.name, namespace) or {}
        wait_for(
            "Kueue knows that it has ended",
            lambda: "Finished" in json.dumps(cluster.get(WORKLOADS, run.name, namespace)),
            30,
        )
        assert facts["metadata"]["ownerReferences"][0]["name"] == run.name


def test_borrowed_samplers_are_taken_back_and_given_again(
    cluster: Cluster, namespace: str, train: Train
) -> None:
    with cluster_queue(cluster, namespace, [namespace], "500m"):
        run = train(
            "borrower", ENDLESS | {"sampler": {"replicas": 2, "minReplicas": 1}} | in_queue(namespace, "low")
        )
        run.wait_for_step(1, START_SECONDS)
        wait_for_samplers(run, 2)
        learner = run.pods("learner")[0]["metadata"]["uid"]

        urgent(cluster, "guest", namespace, namespace, "75m")
        admitted(cluster, "guest", namespace, 90)
        wait_for("its pod is gone", lambda: len(run.pods("sampler")) == 1, 60, run.describe)
        goes_on(run)
        assert is_admitted(cluster, run.name, namespace), "the run itself was not evicted"
        assert not evictions(run)

        gone(cluster, "guest", namespace)
        wait_for_samplers(run, 2)
        goes_on(run)
        assert run.pods("learner")[0]["metadata"]["uid"] == learner
        run.patch({"suspend": True})
        run.wait_for_condition("Suspended", 180)
        wait_for("its quota is free", lambda: not cluster.list(WORKLOADS, namespace), 60)
