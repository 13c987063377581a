"""A service follows a run: better policies reach its clients by themselves, a worse one does not, or not for long."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster_client import Cluster, is_ready, wait_for
from conftest import SYSTEM, TRAINER_IMAGE, Train
from policy_service import PROMPT, TOKENS, Clients, PolicyService, steady_clients
from test_training import START_SECONDS
from training_run import CLAIM, ENDLESS, REPOSITORY, TrainingRun

pytestmark = [pytest.mark.long, pytest.mark.alone]

# A Ray cluster comes up, torch is imported and a policy loaded, beside a run that trains on the same two cores.
SERVE_SECONDS = 300
PROMOTE_SECONDS = 240
ROLLBACK_SECONDS = 60
# A head is made anew, its Ray starts, KubeRay gives it the applications, and copies load the policy.
HEAD_SECONDS = 240
OPERATOR = "app.kubernetes.io/component=operator"
POISON = (REPOSITORY / "tests" / "support" / "poisoned_policy.py").read_text()
FOLLOWED: dict[str, Any] = ENDLESS | {
    "task": {"evaluation": {"everySteps": 1000, "samples": 64}},
    "warmStart": {"maxSteps": 200, "batchSize": 64, "learningRate": 1e-3, "untilScore": 0.15},
    "checkpoint": {"everySteps": 10, "keep": 1000},
}
GATE = {
    "heldOut": {"samples": 64, "maxDrop": 0.2},
    "probe": {"configMap": "probe", "scorer": "exact", "minScore": 0.04, "maxDrop": 0.2},
    "agreement": {},
}
ROLLBACK = {"window": "10s", "minRequests": 10, "maxLatencyRatio": 1000, "probe": False}
# As a user would compute it: the checkpoint's own folder, and nothing of ours but the tokenizer's file.
GREEDY = """
import json, sys, torch
from transformers import AutoModelForCausalLM
from rl_trainer.model.tokenizer import load_tokenizer
run, prompt, count, *steps = sys.argv[1:]
for step in steps:
    folder = f"{run}/checkpoints/step-{int(step):08d}/model"
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([tokenizer.encode(prompt, special_tokens=True)])
    new = []
    for _ in range(int(count)):
        token = int(model(ids).logits[0, -1].argmax())
        if token in tokenizer.stop_ids:
            break
        new.append(token)
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    print("ANSWER", json.dumps([int(step), tokenizer.decode(new)]))
"""


def on_the_claim(run: TrainingRun, name: str, script: str, *arguments: object) -> str:
    """What a Python program prints that has the run's disk; its first argument is the run's folder."""
    text = f"cat > /tmp/program.py <<'END'\n{script}\nEND\n"
    folder = f"/data/{run.name}-{run.uid[:8]}/run"
    command = " ".join(f"'{one}'" for one in (folder, *arguments))
    return run.cluster.run_once(
        run.namespace, name, TRAINER_IMAGE, f"{text}python /tmp/program.py {command}", claim=CLAIM
    )


def another_policy(run: TrainingRun, name: str, kind: str) -> dict[str, Any]:
    """What poisoned_policy.py says of the checkpoint that it has added to a run's."""
    # Libraries may say something before it.
    said: dict[str, Any] = json.loads(on_the_claim(run, name, POISON, kind).splitlines()[-1])
    return said


def probe_of_matrices(count: int) -> str:
    """Matrices that training never saw, and how they read in a spiral: scored by what is right, and no reward."""
    rows, random_ = [], random.Random(7)
    for _ in range(count):
        matrix = [random_.randrange(10) for _ in range(9)]
        answer = "".join(str(matrix[place]) for place in (0, 1, 2, 5, 8, 7, 6, 3, 4))
        rows.append({"prompt": "".join(map(str, matrix)) + "=", "answer": answer})
    return "".join(json.dumps(row) + "\n" for row in rows)


def settled(service: PolicyService, step: int) -> None:
    """Returns when a checkpoint of this step or a later one is served or refused, and nothing is under way."""

    def look() -> bool:
        status = service.status
        done = [one["step"] for one in status.get("promotions", [])]
        return "candidate" not in status and max(done, default=0) >= step

    wait_for(f"step {step} is decided upon", look, PROMOTE_SECONDS, service.describe)


def test_better_policies_reach_clients_and_worse_ones_do_not(
    cluster: Cluster, namespace: str, train: Train, serve: Callable[..., PolicyService]
) -> None:
    probe = {
        "metadata": {"name": "probe", "namespace": namespace},
        "data": {"probe.jsonl": probe_of_matrices(60)},
    }
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", **probe})
    promotion = {"gate": GATE, "rollback": ROLLBACK}
    service = serve("chat", {"from": {"run": "teacher"}, "promotion": promotion})
    service.wait_for_reason("SourceFound", "RunMissing", 60)
    assert service.pods() == []
    run = train("teacher", FOLLOWED)
    service.wait_for_promotions("promoted", 1, START_SECONDS + SERVE_SECONDS)
    service.wait_for_reason("Serving", "Serving", 60)
    with steady_clients(service, TRAINER_IMAGE) as clients:
        service.wait_for_promotions("promoted", 4, 4 * PROMOTE_SECONDS)
        settled(service, run.suspend())
        promoted = service.promotions("promoted")
        clients.wait_for_version(promoted[-1]["version"], 60)
        clients.assert_all_answered(250)
        made = another_policy(run, "poison", "7")
        # Others may have been refused before.
        refused = service.wait_for_the_end(made["digest"], "refused", PROMOTE_SECONDS)
        assert "probe" in refused["message"] or "held-out" in refused["message"], refused
        assert service.serving == promoted[-1]["version"]
        clients.assert_all_answered(300)
        seen = clients.seen
    steps = sorted(one["step"] for one in promoted if one["version"] in seen["versions"])
    assert len(steps) >= 3, seen["versions"]
    said = on_the_claim(run, "greedy", GREEDY, PROMPT, TOKENS, *steps)
    right = dict(
        json.loads(line.removeprefix("ANSWER ")) for line in said.splitlines() if line.startswith("ANSWER ")
    )
    for one in promoted:
        if one["step"] in right:
            assert seen["versions"][one["version"]] == [right[one["step"]]], one["version"]


def test_what_dies_comes_back_a_second_cluster_takes_over_and_a_bad_policy_goes_back(
    cluster: Cluster, train: Train, serve: Callable[..., PolicyService]
) -> None:
    run = train("teacher", FOLLOWED | {"warmStart": None, "stop": {"maxSteps": 10, "targetReward": None}})
    service = serve("chat", {"from": {"run": "teacher"}, "promotion": {"gate": {}}})
    service.wait_for_promotions("promoted", 1, START_SECONDS + SERVE_SECONDS)
    service.wait_for_reason("Serving", "Serving", 60)
    run.wait_for_condition("Succeeded", 120)
    with steady_clients(service, TRAINER_IMAGE) as clients:
        copies_operator_and_head_die(cluster, service, clients)
        since = time.time()
        first = a_second_cluster_takes_over(service, clients)
        failed = clients.failed_of_those_sent(since)
        assert failed == [], failed[:3]
        a_bad_policy_goes_back(run, service, clients)

        def gone() -> bool:
            return not first & {pod["metadata"]["name"] for pod in service.pods()}

        wait_for("the first cluster has gone", gone, SERVE_SECONDS, service.describe)
        service.wait_for_reason("Serving", "Serving", 60)
        goes_on(clients)
        answered_so, failed = ("no numbers", "queue_full"), clients.failed_of_those_sent(since)
        assert [one for one in failed if not any(word in one["error"] for word in answered_so)] == []


def copies_operator_and_head_die(cluster: Cluster, service: PolicyService, clients: Clients) -> None:
    """One after the other, and the service answers again each time, with the policy that it had."""
    good = service.serving
    kill_the_copy(service)
    goes_on(clients)
    died = clients.seen["failed"]
    said = ("replica_died", "unavailable", "queue_full")
    assert [one for one in died if not any(word in one["error"] for word in said)] == []
    print(f"a killed copy cost {len(died)} requests")

    cluster.kubectl("scale", "deployment", "rltrain", "-n", SYSTEM, "--replicas=0")
    try:
        cluster.kubectl("wait", "pod", "-n", SYSTEM, "-l", OPERATOR, "--for=delete", "--timeout=180s")
        since = time.time()
        goes_on(clients)
        assert clients.failed_of_those_sent(since) == []
    finally:
        cluster.kubectl("scale", "deployment", "rltrain", "-n", SYSTEM, "--replicas=1")
        cluster.kubectl("rollout", "status", "deployment/rltrain", "-n", SYSTEM, "--timeout=360s")

    (head,) = (pod["metadata"]["name"] for pod in service.pods("head"))
    killed = datetime.now(UTC)
    cluster.kubectl("delete", "pod", head, "-n", service.namespace, "--grace-period=0", "--force")

    def served_by_another() -> bool:
        # The copy of the killed head answers for some seconds more, and ends then: what it answers shows nothing.
        serving = service.condition("Serving")
        since = datetime.fromisoformat(serving["lastTransitionTime"])
        return serving["status"] == "True" and since >= killed.replace(microsecond=0)

    wait_for("a copy of another head serves", served_by_another, HEAD_SECONDS, service.describe)
    print(f"serves {(datetime.now(UTC) - killed).total_seconds():.0f} s after the head was killed")
    (other,) = service.pods("head")
    assert other["metadata"]["name"] != head
    wait_for("it is ready", lambda: all(map(is_ready, service.pods("head"))), 60, service.describe)
    goes_on(clients)
    assert service.serving == good
    service.wait_for_reason("ClusterReady", "Ready", 60)


def a_second_cluster_takes_over(service: PolicyService, clients: Clients) -> set[str]:
    """Other pods, and answers that are stamped, take another Ray cluster, which has the traffic when it is healthy.

    Returns:
        the pods of the first one, which ends the answers it has begun and goes then.
    """

    def with_the_traffic() -> str:
        found = service.cluster.get("rayservice", service.name, service.namespace) or {}
        return str(found.get("status", {}).get("activeServiceStatus", {}).get("rayClusterName", ""))

    before, first = {pod["metadata"]["name"] for pod in service.pods()}, with_the_traffic()
    promotion = {"answers": "stamp", "rollback": ROLLBACK | {"window": "5m"}}
    # For so long, and a little more, the first of two clusters stays.
    limits = {"timeout": "120s"}
    service.patch({"resources": {"memory": "1700Mi"}, "promotion": promotion, "limits": limits})
    wait_for(
        "a second cluster has the traffic",
        lambda: with_the_traffic() not in ("", first),
        SERVE_SECONDS,
        service.describe,
    )
    service.wait_for_reason("Serving", "Serving", 60)
    goes_on(clients)
    return before


def a_bad_policy_goes_back(run: TrainingRun, service: PolicyService, clients: Clients) -> None:
    """One that answers nothing, by itself; one of another shape is never served."""
    good = service.serving
    broken = another_policy(run, "spoil", "nan")
    service.wait_for_promotions("promoted", 2, PROMOTE_SECONDS)
    began = time.monotonic()
    back = service.wait_for_promotions("rolledBack", 1, ROLLBACK_SECONDS)
    print(f"rolled back after {time.monotonic() - began:.1f} s: {back[-1]['message']}")
    assert back[-1]["digest"] == broken["digest"]
    assert "requests failed" in back[-1]["message"]
    assert service.serving == good

    other = another_policy(run, "reshape", "shape")
    refused = service.wait_for_promotions("refused", 1, PROMOTE_SECONDS)
    assert refused[-1]["digest"] == other["digest"]
    said = service.wait_for_reason("Promoting", "Refused", 60)
    assert "with answers stamp only weights may change" in said
    assert service.serving == good
    goes_on(clients)


def kill_the_copy(service: PolicyService) -> None:
    """SIGKILL for the process of the copy, whose pod stays."""
    (pod,) = (one["metadata"]["name"] for one in service.pods("replica"))
    script = "pkill -9 -f '[r]ay::ServeReplica'"  # not this shell, whose words have it too
    service.cluster.kubectl("exec", pod, "-n", service.namespace, "-c", "ray", "--", "bash", "-c", script)


def goes_on(clients: Clients, seconds: float = 120) -> None:
    """Returns when requests that were sent from now on are answered."""
    target = clients.seen["answered"] + 50
    wait_for(
        "requests are answered",
        lambda: clients.seen["answered"] >= target,
        seconds,
        lambda: json.dumps(clients.seen)[-2000:],
    )
