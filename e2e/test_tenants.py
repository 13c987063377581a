"""Two teams that do not trust each other: what one tries is refused with a sentence, and honest runs train on meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from attacks_by_runs import EXHAUSTION, PLACES
from attacks_from_pods import METADATA, NAMES, NETWORK, RAY, TERMINAL
from attacks_on_the_api import RIGHTS, STATUSES
from cluster_client import Cluster, wait_for
from conftest import OPERATOR_IMAGE, SYSTEM, in_turn, open_namespace, trainer
from connections import reached
from tenants import FORGED_VARIABLES, Attack, Tenants, attacker_pods, secret, user
from test_training import START_SECONDS, TRAIN_SECONDS
from training_run import CLAIM, TrainingRun, example_run

pytestmark = [pytest.mark.long, pytest.mark.tenants]

# Does what it finds in files, as a program of a user's may do anything.
OBEDIENT = """
import glob, os, time
print("begins", flush=True)
while True:
    for path in glob.glob("/tmp/do-*.py"):
        code = open(path).read()
        os.remove(path)
        exec(code, {"os": os})
    time.sleep(0.1)
"""
# Longer than all attempts take.
LASTING = {"stop": {"maxSteps": 1_000_000, "maxDuration": "2h"}}
HOSTILE = {
    "profile": "e2e",
    "trainer": {"command": ["python", "-c", OBEDIENT], "config": None},
    "checkpoint": {"storage": {"path": None, "persistentVolumeClaim": CLAIM}},
    "stop": {"maxSteps": 1_000_000},
    "scheduling": {"preemptionGracePeriod": "5s"},
}


@pytest.fixture(scope="module")
def tenants(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    """Two namespaces, a user in each, and three runs that train."""
    folder = tmp_path_factory.mktemp("users")
    with ExitStack() as stack:
        stack.enter_context(in_turn())  # from the first test to the last
        red, blue = (stack.enter_context(open_namespace(cluster, request, each)) for each in ("red", "blue"))
        one, other = user(cluster, red, folder), user(cluster, blue, folder)
        apply, apply_other = (
            stack.enter_context(trainer(each.cluster, each.namespace, lambda name, value: None))
            for each in (one, other)
        )
        one.cluster.apply(secret(red, "forged", **FORGED_VARIABLES, AWS_SECRET_ACCESS_KEY="of-the-team"))
        victim = apply_other("victim", LASTING)
        honest = apply("honest", LASTING | {"secrets": ["forged"]})
        one.cluster.apply(example_run("command.yaml", "hostile", red, HOSTILE))
        found = Tenants(cluster, one, other, victim, honest, TrainingRun(cluster, "hostile", red))
        attacker_pods(found, OPERATOR_IMAGE)
        stack.enter_context(metadata_service(cluster, found))
        for run in (victim, honest):
            run.wait_for_step(1, START_SECONDS)
        wait_for("the hostile program begins", lambda: "begins" in found.rltrain(one, "logs", "hostile"), 120)
        yield found


@contextmanager
def metadata_service(cluster: Cluster, tenants: Tenants) -> Iterator[None]:
    """On nodes of kind, that of a cloud is played: something answers at its address, to whom no policy forbids it."""
    host, port = METADATA
    node = cluster.list("nodes", selector="rltrain.dev/e2e-storage=true")
    if not node:
        yield
        return
    play = f"ip addr add {host}/32 dev lo; exec socat TCP-LISTEN:{port},bind={host},reuseaddr,fork EXEC:cat"
    name = node[0]["metadata"]["name"]
    line = ["docker", "exec", name, "timeout", "1800", "bash", "-c", play]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        try:
            wait_for(
                "a pod without a policy reaches the metadata service",
                lambda: reached(cluster, tenants.red.namespace, "plain", METADATA)[0],
                30,
            )
            yield
        finally:
            subprocess.run(
                ["docker", "exec", name, "ip", "addr", "del", f"{host}/32", "dev", "lo"], check=False
            )
            service.kill()


@pytest.fixture(autouse=True)
def operator_is_well(cluster: Cluster) -> Iterator[None]:
    """Whatever was tried: no pod of the operator has restarted, and no log has a traceback."""
    yield
    for pod in cluster.list("pods", SYSTEM, "app.kubernetes.io/component=operator"):
        name, states = pod["metadata"]["name"], pod["status"].get("containerStatuses", [])
        assert [each["restartCount"] for each in states if each["restartCount"]] == [], (
            f"{name} has restarted"
        )
        assert "Traceback" not in cluster.logs(name, SYSTEM), f"the log of {name} has a traceback"


def test_who_may_is_answered(tenants: Tenants) -> None:
    """What the attacks below do not reach is there: for the run's own pods."""
    ports = (6379, 8265, 10001, tenants.status_port(tenants.victim))
    [sampler] = tenants.victim.pods("sampler")
    targets = [(tenants.head(tenants.victim)[1], port) for port in ports]
    assert all(reached(tenants.cluster, tenants.blue.namespace, sampler["metadata"]["name"], *targets))


# What needs pods comes first: the last of them takes red's program away.
ATTACKS = [*NETWORK, *RAY, *NAMES, *TERMINAL, *RIGHTS, *STATUSES, *EXHAUSTION, *PLACES]


@pytest.mark.parametrize("attack", [pytest.param(each, id=each.name) for each in ATTACKS])
def test_attack(tenants: Tenants, attack: Attack) -> None:
    attack.carry_out(tenants)


def test_users_see_how_their_runs_go(tenants: Tenants, tmp_path: Path) -> None:
    for team, run in ((tenants.blue, tenants.victim), (tenants.red, tenants.honest)):
        listed = team.cluster.kubectl("get", "rltrainingruns", run.name, "-o", "json")
        assert json.loads(listed.stdout)["status"]["progress"]["step"] > 0
        assert "step" in tenants.rltrain(team, "logs", run.name)
        page = tmp_path / f"{run.name}.html"
        tenants.rltrain(team, "report", run.name, "--out", str(page))
        assert re.search(r'"columns": ?\{"\w+": ?\[', page.read_text()), "the page draws nothing"


def test_honest_runs_train_to_their_end(tenants: Tenants) -> None:
    runs = (tenants.victim, tenants.honest)
    for run in runs:
        step = run.step
        run.wait_for_step(step + 1, 120)
        run.patch({"suspend": True})
    for run in runs:
        run.wait_for_condition("Suspended", 180)
        wait_for("its pods are gone", lambda run=run: not run.pods(), 90, run.describe)
        run.wind_up(run.status["checkpoint"]["step"] + 5)
        run.patch({"suspend": False})
    for run in runs:
        run.wait_for_condition("Succeeded", START_SECONDS + TRAIN_SECONDS)
