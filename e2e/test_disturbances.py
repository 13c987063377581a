"""What happens around a run: its workers die, the operator is upgraded, its leader dies, others train as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cluster_client import Cluster, wait_for
from conftest import SYSTEM, TRAINER_IMAGE, install_operator
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import TrainingRun, check_every_step_once

Train = Callable[..., TrainingRun]
LEASE = "leases.coordination.k8s.io"


@pytest.mark.usefixtures("claim")
def test_two_learners_and_two_samplers(train: Train) -> None:
    run = train("pairs", {"learner": {"replicas": 2}, "sampler": {"replicas": 2}, "stop": {"maxSteps": 30}})
    run.wait_for_step(1, START_SECONDS)
    roles = run.status["roles"]
    assert (roles["learner"]["ready"], roles["sampler"]["ready"]) == (2, 2)
    run.wait_for_condition("Succeeded", TRAIN_SECONDS)
    check_every_step_once(run.metrics(TRAINER_IMAGE), 30)


@pytest.mark.usefixtures("claim")
def test_learner_pod_killed_goes_on_from_the_checkpoint(train: Train) -> None:
    run = train("bereft", {"stop": {"maxSteps": 150}})
    kept = run.wait_for_checkpoint(START_SECONDS)
    run.kill_pod("learner")
    wait_for("a second attempt", lambda: len(run.status.get("attempts", [])) == 2, 240, run.describe)
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    assert run.status["attempts"][1]["fromStep"] >= kept
    check_every_step_once(run.metrics(TRAINER_IMAGE), 150)


@pytest.mark.usefixtures("claim")
def test_two_runs_at_once(train: Train) -> None:
    runs = [
        train(name, {"stop": {"maxSteps": 40}, "seed": seed}) for seed, name in enumerate(("left", "right"))
    ]
    for run in runs:
        run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
        check_every_step_once(run.metrics(TRAINER_IMAGE), 40)


@pytest.fixture
def restored(cluster: Cluster, operator: None) -> Iterator[None]:
    """The operator as the other scenarios expect it, afterwards."""
    yield
    install_operator(cluster)


@pytest.mark.usefixtures("claim", "restored")
def test_upgrade_of_the_chart_does_not_disturb_a_run(cluster: Cluster, train: Train) -> None:
    run = train("steady", {"stop": {"maxSteps": 150}})
    before = run.wait_for_step(2, START_SECONDS)
    pods = {pod["metadata"]["uid"] for pod in run.pods()}
    install_operator(cluster, "podAnnotations.rltrain\\.dev/upgraded=yes", "log.level=debug")
    run.wait_for_step(before + 1, 120)
    assert {pod["metadata"]["uid"] for pod in run.pods()} == pods, "the run's pods were replaced"
    run.wait_for_condition("Succeeded", TRAIN_SECONDS)
    assert len(run.status["attempts"]) == 1


@pytest.mark.usefixtures("claim", "restored")
def test_second_operator_takes_over_when_the_leader_dies(cluster: Cluster, train: Train) -> None:
    install_operator(cluster, "replicas=2")
    run = train("followed", {"stop": {"maxSteps": 150}})
    before = run.wait_for_step(2, START_SECONDS)

    def leader() -> str:
        leases = cluster.list(LEASE, SYSTEM)
        holders = [each["spec"].get("holderIdentity", "") for each in leases]
        pods = [pod["metadata"]["name"] for pod in cluster.list("pods", SYSTEM)]
        return next((pod for pod in pods for holder in holders if holder.startswith(pod)), "")

    first = wait_for("one of two operators leads", leader, 60)
    cluster.kubectl("delete", "pod", first, "-n", SYSTEM, "--grace-period=0", "--force")
    wait_for("the other one leads", lambda: leader() not in ("", first), 90)
    run.wait_for_step(before + 1, 120)
    run.wait_for_condition("Succeeded", TRAIN_SECONDS)
    assert len(run.status["attempts"]) == 1
    check_every_step_once(run.metrics(TRAINER_IMAGE), 150)
