"""Code of the user's with `task.isolation: strict`: what it finds of its run's tokens and credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster_client import Cluster, wait_for
from conftest import TRAINER_IMAGE, Train
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import ENDLESS

SPY = (Path(__file__).parent / "spy.py").read_text()
# Where a container has the Secrets of the task, with those of the run before them or not.
PLACES = "/etc/rltrain-secrets/00:/etc/rltrain-secrets/01"
# Head and sampler have such a container each, on a node of two cores.
SMALL_CODE = {"cpu": 0.05, "memory": "200Mi"}
REWARDS = [{"rule": "function", "function": "spy:look", "timeout": "30s"}]


def bring_the_spy(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Make Secrets of the run and of its task; the spec that names them."""
    for name, data in (
        ("hub", {"HUB_KEY": "of-the-team"}),
        ("judge", {"JUDGE_KEY": "of-the-judge", "PYTHONPATH": PLACES, "spy.py": SPY}),
    ):
        metadata = {"name": name, "namespace": namespace}
        cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    return {"secrets": ["hub"], "retry": {"limit": 0}}


def test_isolated_code_finds_no_token_and_trains(cluster: Cluster, namespace: str, train: Train) -> None:
    task = {"rewards": REWARDS, "secrets": ["judge"], "isolation": "strict", "resources": SMALL_CODE}
    run = train("guarded", ENDLESS | bring_the_spy(cluster, namespace) | {"task": task})
    run.wait_for_step(1, START_SECONDS)
    containers = {
        pod["metadata"]["labels"]["rltrain.dev/role"]: [one["name"] for one in pod["spec"]["containers"]]
        for pod in run.pods()
    }
    assert containers == {
        "head": ["ray", "user-code"],
        "learner": ["ray"],
        "sampler": ["ray", "user-code"],
    }
    [head] = run.pods("head")
    users = {
        one["name"]: cluster.kubectl(
            "exec", head["metadata"]["name"], "-n", namespace, "-c", one["name"], "--", "id", "-u"
        ).stdout.strip()
        for one in head["spec"]["containers"]
    }
    assert users == {"ray": "1000", "user-code": "1001"}
    run.wait_for_step(20, TRAIN_SECONDS)
    run.suspend()
    # It was asked, each time, and found nothing, or it had raised.
    assert all(line["reward_mean"] >= 0.25 for line in run.metrics(TRAINER_IMAGE))


def test_code_that_shares_the_container_finds_what_the_run_has(
    cluster: Cluster, namespace: str, train: Train
) -> None:
    """So that the scenario above is one that could fail; docs/security.md says it."""
    task = {"rewards": REWARDS, "secrets": ["judge"]}
    run = train("open", bring_the_spy(cluster, namespace) | {"task": task})
    message = run.wait_for_condition("Failed", START_SECONDS)["message"]
    assert "found as user 1000" in message
    assert "RAY_AUTH_TOKEN= in /proc/" in message


def test_isolated_code_that_takes_all_memory_is_named(cluster: Cluster, namespace: str, train: Train) -> None:
    metadata = {"name": "judge", "namespace": namespace}
    greedy = "def take(prompt, completion, answer):\n    return float(len(bytearray(2**30)))\n"
    data = {"PYTHONPATH": PLACES, "greedy.py": greedy}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    task = {
        "rewards": [{"rule": "function", "function": "greedy:take"}],
        **{"secrets": ["judge"], "isolation": "strict", "resources": SMALL_CODE},
    }
    run = train("greedy", {"task": task, "retry": {"limit": 0}})
    failed = run.wait_for_condition("Failed", START_SECONDS)
    assert "greedy:take has ended its process" in failed["message"]
    assert "memory" in failed["message"]
    wait_for("its pods are gone", lambda: not run.pods(), 90, run.describe)
