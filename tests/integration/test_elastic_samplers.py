"""Samplers come and go with the nodes of a Ray cluster, and training goes on: nothing is lost, nothing comes twice.

The nodes are processes of this machine (`ray.cluster_utils`), marked for their roles as the operator marks pods.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from training_runs import PROMPTS, Process, RunFiles, actors

from rl_trainer.run.local_ray.processes import only_needed_processes, patient

# Enough steps that no run ends before it is told to.
ENDLESS = {"maxSteps": 100_000}


def node(role: str) -> dict[str, Any]:
    return {"num_cpus": 1, "resources": {role: 1}, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def standing() -> Iterator[Cluster]:
    """A head, and a node for the learner."""
    with pytest.MonkeyPatch.context() as environment:
        # Ray gives a silent node half a minute; here its processes are just gone.
        environment.setenv("RAY_health_check_initial_delay_ms", "1000")
        environment.setenv("RAY_health_check_period_ms", "1000")
        environment.setenv("RAY_health_check_failure_threshold", "5")
        # What a local Ray of an earlier test left behind: the run would not know this cluster's token.
        environment.delenv("RAY_AUTH_MODE", raising=False)
        made = Cluster()
        try:
            with patient(), only_needed_processes():
                made.add_node(**node("head"), include_dashboard=False)
                made.add_node(**node("learner"))
                yield made
        finally:
            made.shutdown()


@pytest.fixture
def cluster(standing: Cluster) -> Iterator[Cluster]:
    """The same, and without nodes for samplers again afterwards."""
    lasting = set(standing.list_all_nodes())
    yield standing
    for other in set(standing.list_all_nodes()) - lasting:
        standing.remove_node(other, allow_graceful=False)


class Training:
    """A run under way on the cluster."""

    def __init__(self, files: RunFiles, process: Process):
        self.files, self.process = files, process

    def hears(self, *parts: str, times: int = 1) -> None:
        """Returns when its console has said so."""

        def said() -> bool:
            text = (self.files.folder / "stdout.txt").read_text()
            return all(text.count(part) >= times for part in parts)

        self.process.wait_for(said)

    def goes_on(self, steps: int = 4) -> None:
        """Returns when it has trained some steps more."""

        def trained() -> int:
            return len(self.files.steps) if (self.files.out / "metrics.jsonl").exists() else 0

        before = trained()
        self.process.wait_for(lambda: trained() >= before + steps)


def test_samplers_join_leave_and_are_replaced_while_training_goes_on(tmp_path: Path, cluster: Cluster):
    files = RunFiles(
        tmp_path,
        sampler={"replicas": 2, "minReplicas": 1},
        buffer={"maxStaleness": 1},
        stop=ENDLESS,
    )
    files.feel(delay=0.01)
    first = cluster.add_node(**node("sampler"))
    cluster.wait_for_nodes()
    with files.start(RAY_ADDRESS=cluster.address) as process:
        training = Training(files, process)
        training.goes_on()
        cluster.add_node(**node("sampler"))
        training.hears("sampler 1 joined: 2 samplers now")
        training.goes_on()

        cluster.remove_node(first, allow_graceful=False)
        training.hears("sampler 0 has gone with its node, 1 left")
        training.goes_on()

        cluster.add_node(**node("sampler"))
        training.hears("sampler 0 joined: 2 samplers now")
        training.goes_on()

        actors("Sampler")[0].kill()
        training.hears("died and was replaced; its")
        training.hears("joined: 2 samplers now", times=3)
        training.goes_on()
        process.send(signal.SIGTERM)
        outcome = process.finish()
    assert outcome.code == 143, outcome
    files.assert_nothing_lost_or_twice()
    assert max(record.staleness_max for record in files.steps) <= 1
    counts = [record.samplers for record in files.steps]
    assert (counts[0], {*counts} >= {1, 2}) == (1, True)


def test_on_policy_with_other_samplers_than_at_the_start_until_too_few_are_left(
    tmp_path: Path, cluster: Cluster
):
    files = RunFiles(
        tmp_path,
        sampler={"replicas": 3, "minReplicas": 1},
        placement={"timeout": "5s"},
        stop=ENDLESS,
    )
    files.feel(delay=0.01)
    nodes = [cluster.add_node(**node("sampler"))]
    cluster.wait_for_nodes()
    with files.start(RAY_ADDRESS=cluster.address) as process:
        training = Training(files, process)
        training.goes_on()
        nodes.append(cluster.add_node(**node("sampler")))
        training.hears("sampler 1 joined: 2 samplers now")
        training.goes_on()
        for one in nodes:
            cluster.remove_node(one, allow_graceful=False)
        training.hears("sampler 0 has gone with its node", "sampler 1 has gone with its node")
        outcome = process.finish()
    assert outcome.code == 1
    assert outcome.sentence.startswith(
        "samplers: 0 left, at least 1 must be there (sampler.minReplicas), and no node for another one came within 5 s"
    )
    trained = [prompt for record in files.steps for prompt in record.prompts]
    assert trained == list(range(len(files.steps) * PROMPTS))
    assert max(record.staleness_max for record in files.steps) == 0


def test_a_cluster_without_room_for_the_fewest_says_so(tmp_path: Path, cluster: Cluster):
    files = RunFiles(tmp_path, sampler={"replicas": 2, "minReplicas": 2}, placement={"timeout": "2s"})
    cluster.add_node(**node("sampler"))
    cluster.wait_for_nodes()
    with files.start(RAY_ADDRESS=cluster.address) as process:
        outcome = process.finish()
    assert outcome.code == 1
    assert outcome.sentence.startswith(
        "placement: the Ray cluster could not hold the run's 4 actors together within"
    )
