"""Workers of a run's task, which have pods of their own: simulators of a game, and a model that scores. Lost ones are made
anew, and the attempt goes on."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_client import Cluster, is_ready, wait_for
from conftest import OBJECT_STORE_IMAGE, TRAINER_IMAGE, Train
from object_store import BUCKET, SECRET, serve_objects
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import RESERVED, TrainingRun, merged

# From a pod that is wanted to a worker that plays: the pod starts, Ray finds it, the game is loaded.
JOIN_SECONDS = 180
GAME: dict[str, Any] = {
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
    "rewards": [{"rule": "task"}, {"rule": "model", "weight": 0.1}],
    "maxTurns": 4,
    "simulators": {"replicas": 2, "cpu": RESERVED, "memory": "512Mi"},
    "rewardModel": {
        "source": f"{BUCKET}/judge",
        "kind": "judge",
        "value": "probability",
        "template": "{prompt}{completion}",
        "answers": ["1", "0"],
        "cpu": RESERVED,
        "memory": "1Gi",
    },
}
UPLOAD = f"""
from rl_trainer.model.presets import write_tiny
from rl_trainer.storage.remote_folder import filesystem_of
files, place = filesystem_of("{BUCKET}/judge")
files.put(str(write_tiny("/tmp/judge", seed=5)), place, recursive=True)
"""


def ready(run: TrainingRun, role: str, *, without: str = "") -> list[dict[str, object]]:
    """Those of a role's pods that are ready, but for the one of that name."""
    return [pod for pod in run.pods(role) if pod["metadata"]["name"] != without and is_ready(pod)]


@pytest.mark.long
def test_workers_of_a_task_have_pods_of_their_own_and_lost_ones_are_made_anew(
    cluster: Cluster, namespace: str, train: Train, elsewhere: dict[str, list[str]]
) -> None:
    task = merged(GAME, {"simulators": elsewhere, "rewardModel": elsewhere})
    serve_objects(cluster, namespace, OBJECT_STORE_IMAGE, TRAINER_IMAGE)
    cluster.run_once(namespace, "upload", TRAINER_IMAGE, f"python - <<'END'\n{UPLOAD}\nEND\n", secret=SECRET)
    run = train(
        "lake",
        {
            "task": task | {"evaluation": None},
            "secrets": [SECRET],
            "algorithm": {"promptsPerStep": 8},
            "sampler": {"maxNewTokens": 8},
            "stop": {"maxSteps": 2000},
        },
    )
    run.wait_for_step(2, START_SECONDS)
    wanted = {"simulator": 2, "reward-model": 1}
    run.wait_for_roles(wanted)

    lost = {role: run.kill_pod(role) for role in wanted}
    for role, count in wanted.items():
        wait_for(
            f"another {role} has the place of the lost one",
            lambda role=role, count=count: len(ready(run, role, without=lost[role])) == count,
            JOIN_SECONDS,
            run.describe,
        )
    # Whoever waits for the lost ones waits until they are there again: steps after that are played and scored by them.
    run.wait_for_step(run.step + 10, JOIN_SECONDS + 120)
    run.wind_up(run.suspend())
    run.patch({"suspend": False})
    run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
    assert [attempt["number"] for attempt in run.status["attempts"]][:1] == [1]
    assert len(run.status["attempts"]) == 2, "the second is the one after the suspension"
