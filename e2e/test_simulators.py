"""Games whose simulators have pods of their own: one is lost, and the attempt goes on."""

from __future__ import annotations

import pytest
from cluster_client import wait_for
from conftest import Train
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import RESERVED, TrainingRun

# From a pod that is wanted to a worker that plays: the pod starts, Ray finds it, the game is loaded.
JOIN_SECONDS = 180
GAME = {
    "environment": "gymnasium",
    "name": "FrozenLake-v1",
    "args": {
        "min_n": None,
        "max_n": None,
        "make": {"is_slippery": False, "desc": ["SSSS", "SHSH", "SSSS", "SSSG"]},
        "actions": "LDRU",
    },
    "promptTemplate": None,
    "answerTemplate": None,
    "rewards": [{"rule": "task"}],
    "maxTurns": 4,
    "simulators": {"replicas": 2, "cpu": RESERVED, "memory": "512Mi"},
}


def simulators(run: TrainingRun, *, without: str = "") -> list[dict[str, object]]:
    """Those of its simulators' pods that are ready, but for the one of that name."""
    return [
        pod
        for pod in run.pods("simulator")
        if pod["metadata"]["name"] != without
        and any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"]["conditions"])
    ]


@pytest.mark.long
def test_simulators_have_pods_of_their_own_and_a_lost_one_is_made_anew(train: Train) -> None:
    task = GAME | {"evaluation": None}
    run = train(
        "lake",
        {
            "task": task,
            "algorithm": {"promptsPerStep": 8},
            "sampler": {"maxNewTokens": 8},
            "stop": {"maxSteps": 2000},
        },
    )
    run.wait_for_step(2, START_SECONDS)
    roles = run.status["roles"]
    assert (roles["simulator"]["ready"], roles["simulator"]["desired"]) == (2, 2)
    assert len(simulators(run)) == 2

    lost = run.kill_pod("simulator")
    wait_for(
        "another pod has its place",
        lambda: len(simulators(run, without=lost)) == 2,
        JOIN_SECONDS,
        run.describe,
    )
    # Whoever waits for the lost one waits until it is there again: steps after that are played by both.
    run.wait_for_step(run.step + 10, JOIN_SECONDS + 120)
    run.wind_up(run.suspend())
    run.patch({"suspend": False})
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    assert [attempt["number"] for attempt in run.status["attempts"]][:1] == [1]
    assert len(run.status["attempts"]) == 2, "the second is the one after the suspension"
