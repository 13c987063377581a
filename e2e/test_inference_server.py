"""A run for which an inference server outside of it samples: with `make e2e-vllm` only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_client import Cluster
from conftest import PROFILE, TRAINER_IMAGE, Train
from connections import reached
from inference_server import FOLDER, LABELS, NAME, PORT, URL, end_inference, serve_inference
from test_vllm import LEARNABLE, START_SECONDS, follows
from training_run import CLAIM, TrainingRun, merged, run_document

SERVED = "e2e-served"
RULES = {"allow": {"endpoints": [{"url": URL, "egress": [{"pods": LABELS, "ports": [PORT]}]}]}}
STEPS = 30
AWAY_SECONDS = 20
SPEC: dict[str, Any] = LEARNABLE | {
    "profile": SERVED,
    "sampler": {
        "engine": "endpoint",
        "endpoint": {
            "url": URL,
            "persistentVolumeClaim": CLAIM,
            "folder": "/mnt/weights",
            "serverFolder": FOLDER,
            "timeout": "4m",
        },
    },
    # Each step's samples are of the policy that it begins with.
    "buffer": {"maxStaleness": 0},
    "stop": {"maxSteps": STEPS},
}


@pytest.fixture
def served(cluster: Cluster) -> Iterator[None]:
    """A profile whose runs may ask the server."""
    cluster.apply(
        PROFILE | {"metadata": {"name": SERVED}, "spec": merged(dict(PROFILE["spec"]), RULES)},
    )
    yield
    cluster.kubectl("delete", f"rltrainingprofile/{SERVED}")


def held_by(cluster: Cluster, run: TrainingRun) -> str:
    """What the server holds, by its own label."""
    script = (
        f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/weight_info').read().decode())"
    )
    pod = ("exec", f"deployment/{NAME}", "-n", run.namespace, "--", "python", "-c", script)
    label: str = json.loads(cluster.kubectl(*pod).stdout)["weight_version"]
    return label


def moved(cluster: Cluster, run: TrainingRun) -> dict[str, float]:
    """By which the weights that the server was given last differ most from those of the start; by their folder."""
    folder = f"/data/{run.name}-{run.uid[:8]}"
    script = f"""
import glob, json
from safetensors.torch import load_file
old = load_file("{folder}/run/initial/model.safetensors")
found = {{}}
for path in glob.glob("{folder}.weights/*/model.safetensors"):
    new = load_file(path)
    assert new.keys() == old.keys()
    found[path.split("/")[-2]] = max(float((new[name] - old[name]).abs().max()) for name in old)
print(json.dumps(found))
"""
    said = cluster.run_once(
        run.namespace, "compare", TRAINER_IMAGE, f"python - <<'END'\n{script}\nEND", claim=CLAIM
    )
    differences: dict[str, float] = json.loads(said.strip().splitlines()[-1])
    return differences


@pytest.mark.vllm
def test_a_run_is_sampled_for_by_a_server_outside_and_says_when_that_is_gone(
    cluster: Cluster, namespace: str, served: None, train: Train
) -> None:
    sizes = run_document("served", namespace)["spec"]["model"]["tiny"]
    serve_inference(cluster, namespace, TRAINER_IMAGE, json.dumps(sizes), START_SECONDS)
    run = train("served", SPEC)
    run.wait_for_step(1, START_SECONDS)
    # The sampler's pod alone reaches the server, which whoever reaches it may give other weights.
    for role, expected in (("sampler", True), ("learner", False), ("head", False)):
        [pod] = run.pods(role)
        name = pod["metadata"]["name"]
        assert reached(cluster, namespace, name, (NAME, PORT), container="ray") == [expected], role
    assert held_by(cluster, run).endswith(f"run {namespace}/{run.name}")

    # Another one comes in its place, with the weights that it is started with.
    cluster.kubectl("delete", "pods", "-l", f"app.kubernetes.io/name={NAME}", "-n", namespace, "--wait=false")
    assert run.step < STEPS, "it was trained before its server was lost"
    run.wait_for_condition("Succeeded", START_SECONDS)
    assert len(run.status["attempts"]) == 1, run.describe()
    assert held_by(cluster, run) == "free", "a run that has ended gives its server back"
    assert [line["step"] for line in follows(run)] == list(range(1, STEPS + 1))
    [(folder, difference)] = moved(cluster, run).items()
    assert difference > 1e-3
    assert int(folder.split("-")[1]) == STEPS, f"the server's last weights are {folder}"

    end_inference(cluster, namespace)
    gone = {"sampler": {"endpoint": {"timeout": f"{AWAY_SECONDS}s"}}, "retry": {"limit": 0}}
    left = train("left", merged(SPEC, gone))
    said = left.wait_for_condition("Failed", START_SECONDS)["message"]
    assert f"server {URL}" in said
    assert f"spec.sampler.endpoint.timeout ({AWAY_SECONDS} s)" in said
