"""Samplers come and go with the nodes of a Ray cluster, and training goes on: nothing is lost, nothing comes twice.

The nodes are processes of this machine (`ray.cluster_utils`), marked for their roles as the operator marks pods.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from training_runs import PROMPTS, Process, RunFiles, actors

from rl_api.progress import SPEC_HASH_VARIABLE
from rl_api.roles import LEAVE_VARIABLE
from rl_trainer.run.local_ray.processes import (
    fork_server,
    forked_workers,
    only_needed_processes,
    patient,
    quick_start,
)

# Enough steps that no run ends before it is told to.
ENDLESS = {"maxSteps": 100_000}


def node(role: str) -> dict[str, Any]:
    return {"num_cpus": 1, "resources": {role: 1}, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def standing() -> Iterator[Cluster]:
    """A head, and a node for the learner, which stay: their workers are forked from one process, which has imported torch.

    Such a worker sees the end of one raylet alone, and those of samplers are to be gone with theirs.
    """
    with pytest.MonkeyPatch.context() as environment:
        # Ray gives a silent node half a minute; here its processes are just gone, and it is to be known some seconds before
        # `NODE_DEATH_SECONDS` are over: else a sampler is taken for one that died alone. Who only answers late is not gone.
        environment.setenv("RAY_health_check_initial_delay_ms", "1000")
        environment.setenv("RAY_health_check_period_ms", "1000")
        environment.setenv("RAY_health_check_failure_threshold", "2")
        environment.setenv("RAY_health_check_timeout_ms", "30000")
        # What a local Ray of an earlier test left behind: the run would not know this cluster's token.
        environment.delenv("RAY_AUTH_MODE", raising=False)
        made = Cluster()
        try:
            with patient(), only_needed_processes(), quick_start(fork_server):
                with quick_start(forked_workers):
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
        # It is told to begin after that is said: the next steps may be made without it.
        process.wait_for(lambda: files.steps[-1].samplers == 2)
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


def test_a_driver_writes_down_what_its_attempt_held(tmp_path: Path, cluster: Cluster):
    """Four pods, of which one has accelerators that no actor asks for: held they are all the same."""
    files = RunFiles(tmp_path)
    cluster.add_node(**node("sampler"))
    cluster.add_node(**node("spare"), num_gpus=2)
    cluster.wait_for_nodes()
    told = {"RLTRAIN_FENCE": "uid/2/pod", SPEC_HASH_VARIABLE: "5f2a9d0c1b7e3846"}
    started = time.time()
    with files.start(RAY_ADDRESS=cluster.address, **told) as process:
        process.finish().assert_well()
    lines = (files.out / "attempts.jsonl").read_text().splitlines()
    begun, ended = (json.loads(line) for line in lines)
    assert (ended["attempt"], ended["spec_hash"], ended["reason"]) == (2, "5f2a9d0c1b7e3846", "done")
    # It counts from when it has joined Ray, which is before it has begun to train.
    least, most = 4 * (ended["time"] - begun["time"]), 4 * (ended["time"] - started)
    assert least - 0.1 <= ended["pod_seconds"] <= most + 0.1
    assert ended["accelerator_seconds"] == pytest.approx(ended["pod_seconds"] / 2, abs=0.1)


def leave(at: Path) -> str:
    """What the kubelet does before it ends a sampler's pod; what the sampler says to it."""
    command = [sys.executable, "-m", "rl_trainer.rollout.leaving", str(at), "200"]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


def hold_up(files: RunFiles, process: Process, sampler: int) -> int:
    """A prompt that this sampler, of three, has begun and does not end; on-policy nothing is trained on without it."""
    while True:
        prompts = range((len(files.steps) + 3) * PROMPTS, 10**6)
        prompt = next(prompt for prompt in prompts if prompt % 3 == sampler)
        files.feel({prompt: "holdFirst"})
        held = files.folder / f"held-{prompt}"
        process.wait_for(lambda held=held, prompt=prompt: held.exists() or trained(files) > prompt)
        if held.exists():
            return prompt
        # It was rewarded before the reward knew of it, as this process was kept waiting: another one.


def trained(files: RunFiles) -> int:
    """How many prompts have been trained on."""
    return len(files.steps) * PROMPTS


def trained_at(files: RunFiles, process: Process, prompt: int) -> float:
    """When the step with this prompt ended, once it has."""

    def times() -> list[float]:
        return [record.time for record in files.steps if prompt in record.prompts]

    process.wait_for(lambda: bool(times()))
    return times()[0]


def test_a_sampler_that_is_told_to_go_gives_its_groups_back_at_once(tmp_path: Path, cluster: Cluster):
    files = RunFiles(tmp_path, sampler={"replicas": 3, "minReplicas": 1}, stop=ENDLESS)
    at = [tmp_path / f"leave-{number}" for number in range(3)]
    nodes = [cluster.add_node(**node("sampler"), env_vars={LEAVE_VARIABLE: str(at[0])})]
    cluster.wait_for_nodes()
    with files.start(RAY_ADDRESS=cluster.address) as process:
        training = Training(files, process)
        training.goes_on(1)
        for number in (1, 2):
            nodes.append(cluster.add_node(**node("sampler"), env_vars={LEAVE_VARIABLE: str(at[number])}))
            training.hears(f"sampler {number} joined: {number + 1} samplers now")
            process.wait_for(lambda: files.steps[-1].samplers == len(nodes))

        prompt = hold_up(files, process, sampler=2)
        unfinished = int(leave(at[2]).split()[0])
        told = time.time()  # not before: the start of a process that tells it is no part of this
        assert unfinished >= 1
        given_back = trained_at(files, process, prompt) - told
        # Its node still lives, and so does it: what it ends now has been sampled by others.
        (files.folder / "let-go").touch()
        training.hears(f"sampler 2 is told to go with its pod and has given {unfinished} unfinished group")
        training.goes_on()
        assert leave(at[2]).startswith(f"{unfinished} "), "nothing was begun there since"
        (files.folder / "let-go").unlink()
        cluster.remove_node(nodes[2], allow_graceful=False)
        training.hears("sampler 2 has gone with its node, 2 left")

        prompt = hold_up(files, process, sampler=1)
        killed = time.time()
        cluster.remove_node(nodes[1], allow_graceful=False)
        lost = trained_at(files, process, prompt) - killed
        training.hears("sampler 1 has gone with its node, 1 left; its ")
        training.goes_on()
        process.send(signal.SIGTERM)
        outcome = process.finish()
    assert outcome.code == 143, outcome
    assert "replaced" not in outcome.out
    trained = [prompt for record in files.steps for prompt in record.prompts]
    assert trained == list(range(len(files.steps) * PROMPTS)), "every prompt once, in order"
    print(f"others had trained on it {given_back:.1f} s after a notice, {lost:.1f} s after a kill")
    assert given_back < lost


def test_on_policy_with_other_samplers_than_at_the_start_until_too_few_are_left(
    tmp_path: Path, cluster: Cluster
):
    files = RunFiles(
        tmp_path,
        sampler={"replicas": 3, "minReplicas": 1},
        placement={"timeout": "10s"},
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
        # Only then it is looked at what it said: it may have ended before this process comes to look.
        outcome = process.finish()
    assert outcome.code == 1
    for number in range(2):
        assert f"sampler {number} has gone with its node" in outcome.out
    assert outcome.sentence.startswith(
        "samplers: 0 left, at least 1 must be there (sampler.minReplicas), and no node for another one came within 10 s"
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
