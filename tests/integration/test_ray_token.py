"""A Ray that is started as the pods of a run start it answers only those who have the run's token."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import requests
from operator_worlds import make_plan
from started_ray import SECONDS, Head, of_a_pod, without_ray

from rl_operator.model.tokens import RAY, derive_token

TOKEN: Final = derive_token(b"key", "12345678-90ab", 1, RAY)


def _environment(token: str | None) -> dict[str, str]:
    """That of a process with the token of a run, as the head's pod has it; None: one that knows nothing of it."""
    return without_ray() if token is None else of_a_pod(make_plan(), token)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    folder = Path(f"/tmp/rltrain-token-{os.getpid()}")  # Ray's sockets need short names
    started = Head(folder, _environment(TOKEN))
    try:
        yield started
    finally:
        started.end()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_dashboard_and_jobs_are_for_those_who_have_the_token(head: Head) -> None:
    for path in ("/api/version", "/api/jobs/", "/nodes?view=summary", "/api/v0/actors"):
        assert head.status(path) == 401, path
        assert head.status(path, _bearer("wrong")) == 403, path
        assert head.status(path, _bearer(TOKEN)) == 200, path
    # This is how KubeRay's operator says it.
    assert head.status("/api/jobs/", {"x-ray-authorization": f"Bearer {TOKEN}"}) == 200
    job = {"entrypoint": "echo"}
    address = f"http://127.0.0.1:{head.dashboard}/api/jobs/"
    assert requests.post(address, json=job, timeout=30).status_code == 401


def test_probes_need_no_token(head: Head) -> None:
    deadline = time.monotonic() + SECONDS
    while head.status("/api/healthz", port=head.agent) != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert head.status("/api/job_agent/jobs/", port=head.agent) == 401


JOIN: Final = """
import json, sys, ray
ray.init(address="{address}", log_to_driver=False)
print(json.dumps(ray.get(ray.remote(lambda: 7).remote(), timeout=120)))
"""


def test_a_driver_with_the_token_joins_and_one_without_is_told_why(head: Head) -> None:
    program = JOIN.format(address=f"127.0.0.1:{head.gcs}")
    done = head.python(program, _environment(TOKEN))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == 7
    for token in (None, "0" * 64):
        refused = head.python(program, _environment(token))
        assert refused.returncode != 0
        assert "Failed to connect to Ray cluster" in refused.stderr


def test_no_secret_switches_it_off(head: Head) -> None:
    """The container's own variables win over those of a Secret; a process that says otherwise gets nothing."""
    program = "import os; os.environ['RAY_AUTH_MODE'] = 'disabled'" + JOIN.format(
        address=f"127.0.0.1:{head.gcs}"
    )
    refused = head.python(program, without_ray())
    assert refused.returncode != 0
    assert "Failed to connect to Ray cluster" in refused.stderr
