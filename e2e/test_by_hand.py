"""Runs that rltrain's own loop does not train: a program of the user's, and a Ray cluster that is worked on by hand.

Both are handled as a person does it, with the command line.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_client import COMMAND_SECONDS, PATIENCE, Cluster, wait_for
from conftest import TRAINER_IMAGE, Train
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import CLAIM, EXAMPLES, UNREAD, TrainingRun, example_run

RLTRAIN = str(Path(sys.executable).with_name("rltrain"))


def rltrain(
    command: str, run: TrainingRun, *arguments: str, seconds: float = COMMAND_SECONDS
) -> subprocess.CompletedProcess[str]:
    """A command about a run, to its end; whatever its exit code."""
    line = [RLTRAIN, command, run.name, "-n", run.namespace, *arguments]
    return subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
    )


def ended(command: str, run: TrainingRun, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The same, once it ends with that exit code: on a busy node one of hundreds of calls fails."""

    def look() -> subprocess.CompletedProcess[str] | None:
        done.append(rltrain(command, run, *arguments))
        return done[-1] if done[-1].returncode == code else None

    done: list[subprocess.CompletedProcess[str]] = []
    return wait_for(f"rltrain {command} ends with exit code {code}", look, 60, lambda: f"{done[-1]}")


def fence_of(run: TrainingRun, attempt: int) -> str:
    """What the driver of an attempt, in the head that there is now, leaves in the run's folder."""
    [head] = run.pods("head")
    return f"{run.uid}/{attempt}/{head['metadata']['uid']}"


@pytest.mark.long
def test_a_program_of_the_users_own_is_evicted_and_suspended_and_ends(
    cluster: Cluster, namespace: str
) -> None:
    program = (EXAMPLES / "reinforce.py").read_text()
    spec = {
        "profile": "e2e",
        # What would be part of an image of the user's own. Its steps are large, so that it is seen while it trains.
        "trainer": {"command": ["python", "-c", program], "config": {"batch": 20_000}},
        "checkpoint": {"storage": {"path": None, "persistentVolumeClaim": CLAIM}},
        "stop": {"maxSteps": 1_000_000},
        "secrets": ["hub"],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": namespace}}
    cluster.apply(secret | {"stringData": {"HF_TOKEN": "of-the-team"}})
    cluster.apply(example_run("command.yaml", "command", namespace, spec))
    run = TrainingRun(cluster, "command", namespace)
    run.wait_for_step(1, START_SECONDS)
    assert [pod["metadata"]["labels"]["rltrain.dev/role"] for pod in run.pods()] == ["head"]
    said = ended("logs", run)
    assert "learns the word 'reinforce' from step 0" in said.stdout, said
    assert ended("exec", run, "--", "printenv", "HF_TOKEN").stdout == "of-the-team\n"

    # As Kueue takes a quota back and gives it again: the attempt goes on with another head.
    [first] = run.pods()
    for suspend in (True, False):
        evicted = json.dumps({"spec": {"suspend": suspend}})
        cluster.kubectl("patch", "rayjob", "command-1", "-n", namespace, "--type=merge", "-p", evicted)
        wait_for(
            "its head is gone, or there again",
            lambda gone=suspend: gone == (not run.pods()),
            90,
            run.describe,
        )
    run.wait_for_step(run.step + 1, START_SECONDS)
    owner = ("cat", "/var/lib/rltrain/run/.owner")
    wait_for(
        "the new head owns the folder",
        lambda: run.pods("head") and rltrain("exec", run, "--", *owner).stdout == fence_of(run, 1),
        START_SECONDS,
        run.describe,
    )
    assert first["metadata"]["uid"] not in fence_of(run, 1)

    assert rltrain("suspend", run).returncode == 0
    run.wait_for_condition("Suspended", 180)
    kept = run.status["checkpoint"]["step"]
    assert kept >= 1
    run.wind_up(kept + 100)
    assert rltrain("resume", run).returncode == 0
    watched = rltrain("watch", run, seconds=(START_SECONDS + TRAIN_SECONDS) * PATIENCE)
    assert watched.returncode == 0, watched
    assert run.condition("Succeeded")["status"] == "True"
    assert [attempt["fromStep"] for attempt in run.status["attempts"]] == [0, kept]
    metrics = run.metrics(TRAINER_IMAGE)
    assert [line["step"] for line in metrics] == list(range(1, kept + 101))
    assert metrics[-1]["reward_mean"] > 0.5  # 1/26 of the letters are right where nothing was learned
    # What a program of the user's said last nobody else knows.
    if UNREAD not in run.condition("Succeeded")["message"]:
        progress = run.status["progress"]
        assert progress["step"] == run.status["checkpoint"]["step"] == kept + 100
        assert progress["reward"] > 0.5


def test_a_cluster_to_work_on_by_hand(train: Train) -> None:
    run = train("notebook", {"workload": "Cluster", "stop": {"maxSteps": 3}})
    run.wait_for_condition("ClusterReady", START_SECONDS)
    assert {each.partition("/")[0] for each in run.objects()} >= {"RayCluster", "Secret", "NetworkPolicy"}
    assert not any(each.startswith("RayJob/") for each in run.objects())

    script = "printenv RLTRAIN_FENCE; cat /etc/rltrain/run.yaml; ls nowhere"
    looked = ended("exec", run, "--", "sh", "-c", script, code=2)  # that of ls
    fence, _, config = looked.stdout.partition("\n")
    assert fence == fence_of(run, 1)
    assert "maxSteps: 3" in config
    assert "nowhere" in looked.stderr
    assert typed(run, "test -t 0 && read answer && echo got $answer", b"a line\r") == (0, "got a line")

    by_hand = "rltrain run /etc/rltrain/run.yaml --out /var/lib/rltrain/run --resume"
    trained = rltrain("exec", run, "--", *by_hand.split(), seconds=TRAIN_SECONDS * PATIENCE)
    assert trained.returncode == 0, trained
    wait_for("the status shows what was trained", lambda: run.step == 3, 60, run.describe)
    cancelled = rltrain("cancel", run, "--yes", "--timeout", "340")
    assert cancelled.returncode == 0, cancelled
    wait_for("nothing is left of the run", lambda: not run.objects(), 90, lambda: f"left: {run.objects()}")


def typed(run: TrainingRun, script: str, keys: bytes) -> tuple[int, str]:
    """Exit code and last line of a shell script in the head pod, for somebody who types `keys` at a terminal."""
    keyboard, terminal = pty.openpty()
    line = [RLTRAIN, "exec", run.name, "-n", run.namespace, "--", "sh", "-c", script]
    with (
        os.fdopen(keyboard, "r+b", buffering=0) as person,
        subprocess.Popen(line, stdin=terminal, stdout=terminal, stderr=terminal) as command,
    ):
        os.close(terminal)
        person.write(keys)
        try:
            code = command.wait(60 * PATIENCE)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
        return code, person.read(4096).decode().rstrip().split("\r\n")[-1]
