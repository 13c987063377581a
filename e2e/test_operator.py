"""What happens to the operator while a run trains is nothing to the run: one run, and one disturbance after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import SYSTEM, TRAINER_IMAGE, install_operator, open_namespace, trainer
from test_training import START_SECONDS
from training_run import ENDLESS, TrainingRun, check_every_step_once

pytestmark = pytest.mark.long

LEASE = "leases.coordination.k8s.io"


@pytest.fixture(scope="module")
def steady(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[TrainingRun]:
    """A run that trains, for all scenarios of this file until the one that deletes it."""
    with ExitStack() as stack:
        namespace = stack.enter_context(open_namespace(cluster, request, "operator"))
        apply = stack.enter_context(trainer(cluster, namespace, lambda name, value: None))
        yield apply("steady", ENDLESS)


@pytest.fixture
def undisturbed(steady: TrainingRun) -> Iterator[TrainingRun]:
    """The run while it trains; afterwards it must have gone on, in the same pods."""
    before = steady.wait_for_step(1, START_SECONDS)
    pods = {pod["metadata"]["uid"] for pod in steady.pods()}
    yield steady
    steady.wait_for_step(max(before, steady.step) + 1, 120)
    assert {pod["metadata"]["uid"] for pod in steady.pods()} == pods, "the run's pods were replaced"
    assert len(steady.status["attempts"]) == 1


def test_operator_killed_while_a_run_trains(cluster: Cluster, undisturbed: TrainingRun) -> None:
    cluster.kubectl("delete", "pods", "--all", "-n", SYSTEM, "--grace-period=0", "--force")


def test_upgrade_of_the_chart_does_not_disturb_a_run(cluster: Cluster, undisturbed: TrainingRun) -> None:
    install_operator(cluster, "podAnnotations.rltrain\\.dev/upgraded=yes", "log.level=debug", "replicas=2")


def test_second_operator_takes_over_when_the_leader_dies(cluster: Cluster, undisturbed: TrainingRun) -> None:
    def leader() -> str:
        leases = cluster.list(LEASE, SYSTEM)
        holders = [each["spec"].get("holderIdentity", "") for each in leases]
        pods = [
            pod["metadata"]["name"]
            for pod in cluster.list("pods", SYSTEM)
            if not pod["metadata"].get("deletionTimestamp")
        ]
        return next((pod for pod in pods for holder in holders if holder.startswith(pod)), "")

    first = wait_for("one of two operators leads", leader, 60)
    # A scenario beside this one may have killed it in between.
    cluster.kubectl("delete", "pod", first, "-n", SYSTEM, "--grace-period=0", "--force", "--ignore-not-found")
    wait_for("the other one leads", lambda: leader() not in ("", first), 90)


def test_deleting_a_run_leaves_nothing(
    cluster: Cluster, steady: TrainingRun, record_property: Callable[[str, Any], None]
) -> None:
    steady.wait_for_step(1, START_SECONDS)
    assert any(each.startswith("RayJob/") for each in steady.objects())
    cluster.kubectl(
        "delete", "rltrainingrun", steady.name, "-n", steady.namespace, "--timeout=360s", timeout=400
    )
    wait_for(
        "nothing is left of the run", lambda: not steady.objects(), 90, lambda: f"left: {steady.objects()}"
    )
    # Its metrics stay on the claim, as its checkpoints do.
    metrics = steady.metrics(TRAINER_IMAGE)
    record_property("prompts", check_every_step_once(metrics, metrics[-1]["step"]))
