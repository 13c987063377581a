"""A Ray that is started as the pods of an encrypted run start it answers only those who have certificates of the run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import requests
from operator_worlds import make_plan
from ray.util import get_node_ip_address
from started_ray import SECONDS, Head, of_a_pod
from training_runs import until
from who_is_answered import ENCRYPTED, PROGRAM

from rl_operator.model.tokens import AUTHORITY, RAY, derive_token
from rl_operator.plan.effective import Effective
from rl_trainer.run.certificates import main

TOKEN: Final = derive_token(b"key", "12345678-90ab", 1, RAY)
BEARER: Final = {"Authorization": f"Bearer {TOKEN}"}
HOST: Final = get_node_ip_address()


def encrypted_run() -> Effective:
    return make_plan({"scheduling": {"encryption": True}})


def pod(folder: Path, role: str, attempt: int = 1) -> dict[str, str]:
    """The environment of a pod's processes, after the container that makes the certificates."""
    folder.mkdir(parents=True)
    (folder / "seed").write_text(derive_token(b"key", "12345678-90ab", attempt, AUTHORITY))
    assert main([str(folder / "seed"), str(folder), HOST]) == 0
    said = of_a_pod(encrypted_run(), TOKEN, role)
    return {name: value.replace("/etc/rltrain-tls", str(folder)) for name, value in said.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def head(files: Path) -> Iterator[Head]:
    folder = Path(f"/tmp/rltrain-tls-{os.getpid()}")  # Ray's sockets need short names
    started = Head(folder, pod(files / "head", "head"))
    try:
        started.join(pod(files / "sampler", "sampler"), "sampler")
        yield started
    finally:
        started.end()


# A driver as the head's job runs it: an object of one node is read on the other, and an actor there answers.
DRIVER: Final = """
import json, numpy, ray
ray.init(address="{address}", log_to_driver=False)
there = ray.remote(num_cpus=0, resources={{"sampler": 0.01}})
made = ray.put(numpy.ones(2**22, numpy.uint8))
assert ray.get(there(lambda given: int(given.sum())).remote(made), timeout=120) == 2**22
assert ray.get(there(lambda: numpy.ones(2**22, numpy.uint8)).remote(), timeout=120).sum() == 2**22
nodes = [node for node in ray.nodes() if node["Alive"]]
print(json.dumps([node[port] for node in nodes for port in ("NodeManagerPort", "ObjectManagerPort")]))
"""


def ports_of(head: Head) -> list[int]:
    """Every port at which Ray's nodes talk to each other."""
    done = head.python(DRIVER.format(address=f"127.0.0.1:{head.gcs}"), head.environment)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    assert len(set(found)) == 4, "two nodes"

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, head.client), 10):
            return True
        return False

    # It is of a process that `ray start` does not wait for.
    until(listens, SECONDS, lambda: "nobody listens for clients")
    return [head.gcs, head.client, *found]


def test_no_port_answers_without_a_certificate_of_the_attempt(head: Head, files: Path) -> None:
    others = pod(files / "other", "sampler", attempt=2)
    for port in ports_of(head):
        answers = [
            json.loads(
                head.run([sys.executable, "-c", PROGRAM, HOST, str(port)], os.environ | environment).stdout
            )
            for environment in (head.environment, others)
        ]
        assert answers == [ENCRYPTED, dict.fromkeys(ENCRYPTED, False)], port


def test_a_job_that_kuberay_submits_runs_on_both_nodes(head: Head) -> None:
    address = f"http://127.0.0.1:{head.dashboard}/api/jobs/"
    (head.folder / "driver.py").write_text(DRIVER.format(address="auto"))
    job = {"entrypoint": f"{sys.executable} {head.folder}/driver.py"}
    deadline, found = time.monotonic() + SECONDS, {}
    # As KubeRay does it: Ray takes no job before its agent is up.
    while (made := requests.post(address, json=job, headers=BEARER, timeout=60)).status_code == 500:
        assert "No available agent" in made.text
        assert time.monotonic() < deadline, made.text
        time.sleep(0.5)
    assert made.status_code == 200, made.text
    while found.get("status") not in ("SUCCEEDED", "FAILED"):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
        found = requests.get(address + made.json()["submission_id"], headers=BEARER, timeout=60).json()
    assert found["status"] == "SUCCEEDED", found


def test_probes_are_answered_as_ever(head: Head) -> None:
    until(lambda: head.status("/api/healthz", port=head.agent) == 200, SECONDS)
