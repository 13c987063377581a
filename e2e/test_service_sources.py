"""Services of a policy in an object store: API keys, several copies, steps by hand, answers stamped by other weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from conftest import OBJECT_STORE_IMAGE, TRAINER_IMAGE, Train
from object_store import BUCKET, SECRET, serve_objects
from policy_service import PROMPT, PolicyService, steady_clients
from serving_metrics import missing
from test_training import START_SECONDS
from training_run import TrainingRun

SERVE_SECONDS = 300
PROMOTE_SECONDS = 120
ALICE, BOB, MALLORY = "sk-alice-0123456789", "sk-bob-0123456789", "sk-mallory-0123456"
KEYS = {"alice": ALICE, "bob": f"# renewed\n{BOB}\n", "carol": "guess"}
ASK = """
import json, sys, urllib.error, urllib.request
url, model, prompt, *keys = sys.argv[1:]
for key in keys:
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 4}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            print("ANSWER", json.dumps([key, answer.status, json.loads(answer.read())]))
    except urllib.error.HTTPError as error:
        print("ANSWER", json.dumps([key, error.code, json.loads(error.read())]))
"""

# Inside the pod: who else may read them is said in the chart's values, and here nobody is.
METRICS = """
import socket, urllib.request
own = socket.gethostbyname(socket.gethostname())
print(urllib.request.urlopen(f"http://{own}:8080/metrics", timeout=30).read().decode())
"""


def asked(service: PolicyService, name: str, *keys: str) -> dict[str, tuple[int, dict[str, Any]]]:
    """Status and body of the answer to one request with each of these keys."""
    arguments = [f"http://{service.name}-serve-svc:8000/v1/completions", service.name, PROMPT, *keys]
    words = " ".join(f"'{one}'" for one in arguments)
    script = f"cat > /tmp/ask.py <<'END'\n{ASK}\nEND\npython /tmp/ask.py {words}\n"
    said = service.cluster.run_once(service.namespace, name, TRAINER_IMAGE, script)
    lines = [line.removeprefix("ANSWER ") for line in said.splitlines() if line.startswith("ANSWER ")]
    return {key: (status, body) for key, status, body in map(json.loads, lines)}


def wait_for_metrics(service: PolicyService) -> None:
    """Returns when Ray's agent in a copy's pod shows Prometheus all that dashboards and alerts ask for."""

    def lacking() -> list[str]:
        for pod in service.pods("replica"):
            name = pod["metadata"]["name"]
            read = ("exec", name, "-n", service.namespace, "-c", "ray", "--", "python", "-c", METRICS)
            done = service.cluster.kubectl(*read, check=False)
            if done.returncode == 0:
                # It has no copies for prompts.
                return missing(done.stdout, but=["ray_rltrain_serve_prefills_total"])
        return ["no page of metrics could be read"]

    wait_for("its metrics are there", lambda: not lacking(), 60, lambda: f"{lacking()}")


def training_into_the_bucket(cluster: Cluster, namespace: str, train: Train) -> TrainingRun:
    """A run of ten steps whose two checkpoints, of steps 5 and 10, come into an object store of the namespace."""
    serve_objects(cluster, namespace, OBJECT_STORE_IMAGE, TRAINER_IMAGE)
    storage = {"persistentVolumeClaim": None, "s3": BUCKET}
    checkpoint = {"everySteps": 5, "keep": 10, "storage": storage}
    stop = {"maxSteps": 10, "targetReward": None}
    return train("teacher", {"secrets": [SECRET], "checkpoint": checkpoint, "stop": stop})


@pytest.mark.long
@pytest.mark.alone  # several copies, and clients, on two cores
def test_a_policy_in_a_bucket_with_keys_copies_and_a_step_by_hand(
    cluster: Cluster, namespace: str, train: Train, serve: Callable[..., PolicyService]
) -> None:
    run = training_into_the_bucket(cluster, namespace, train)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": namespace}}
    cluster.apply(secret | {"stringData": KEYS})
    promotion = {
        "mode": "manual",
        "step": 5,
        "answers": "stamp",
        "gate": {"agreement": {}},
        "rollback": {"window": "5s"},
    }
    service = serve(
        "chat",
        {
            "from": {"run": "teacher"},
            "secrets": [SECRET],
            "auth": {"secret": "keys"},
            "replicas": {"min": 2},
            "promotion": promotion,
        },
    )
    [first] = service.wait_for_promotions("promoted", 1, START_SECONDS + SERVE_SECONDS)
    assert first["step"] == 5
    assert "agreement" in first["message"], first
    service.wait_for_reason("Serving", "Serving", 60)
    wait_for("both copies serve", lambda: service.status["replicas"]["ready"] == 2, 60, service.describe)
    assert len(service.pods("replica")) == 2
    run.wait_for_condition("Succeeded", 120)

    wait_for(
        "the short key is named",
        lambda: "carol has a key that is too short" in service.condition("Serving").get("message", ""),
        60,
        service.describe,
    )
    answers = asked(service, "ask", ALICE, BOB, MALLORY, "guess")
    assert {key: status for key, (status, _) in answers.items()} == {
        ALICE: 200,
        BOB: 200,
        MALLORY: 401,
        "guess": 401,
    }
    assert answers[ALICE][1]["policy_version"] == first["version"]
    assert answers[MALLORY][1]["error"]["code"] == "invalid_api_key"

    # Comes up meanwhile.
    fixed = {"checkpoint": f"{BUCKET}/{run.name}-{run.uid[:8]}/step-{5:08d}"}
    other = serve("fixed", {"from": fixed, "secrets": [SECRET], "promotion": {"gate": {}}})
    with steady_clients(service, TRAINER_IMAGE, key=ALICE) as clients:
        service.patch({"promotion": {"step": 10}})
        second = service.wait_for_promotions("promoted", 2, PROMOTE_SECONDS)[-1]
        assert second["step"] == 10
        clients.wait_for_version(second["version"], 60)
        clients.assert_none_failed()
        assert set(clients.seen["versions"]) <= {first["version"], second["version"]}
        wait_for_metrics(service)

        before = {pod["metadata"]["uid"] for pod in service.pods()}
        for copies in (1, 2):
            service.patch({"replicas": {"min": copies}})
            there = lambda copies=copies: (  # noqa: E731
                len(service.pods("replica")) == service.status["replicas"]["ready"] == copies
            )
            wait_for(f"there are {copies} copies", there, SERVE_SECONDS, service.describe)
        assert len(before & {pod["metadata"]["uid"] for pod in service.pods()}) == 2, (
            "another cluster came up"
        )
        clients.assert_none_failed()

        service.patch({"promotion": {"step": 7}})
        said = service.wait_for_reason("Promoting", "StepMissing", 60)
        assert "found 7" in said
        assert "5, 10" in said

        [one, _] = (pod["metadata"]["name"] for pod in service.pods("replica"))
        cluster.kubectl("delete", "pod", one, "-n", namespace, "--grace-period=0", "--force")
        goes_on = clients.seen["answered"] + 50
        wait_for("requests are answered", lambda: clients.seen["answered"] >= goes_on, 120, service.describe)
        wait_for(
            "both copies serve again",
            lambda: service.status["replicas"]["ready"] == 2,
            SERVE_SECONDS,
            service.describe,
        )
        clients.wait_for_version(second["version"], 60)
    assert service.serving == second["version"]

    [only] = other.wait_for_promotions("promoted", 1, SERVE_SECONDS)
    assert only["digest"] == first["digest"]
    other.wait_for_reason("Serving", "Serving", 60)
    status, body = asked(other, "ask-fixed", "nobody")["nobody"]
    assert (status, body["policy_version"]) == (200, only["version"])
