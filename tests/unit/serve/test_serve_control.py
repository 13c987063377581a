"""What the operator reads of a service's control: short whatever has happened, and what it decides by is always in it."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from async_work import run_async
from ray.exceptions import WorkerCrashedError
from starlette.requests import Request as HttpRequest

from rl_api.errors import (
    CheckpointError,
    DeadlineExceeded,
    InvalidConfig,
    ModelError,
    TaskError,
    Unavailable,
)
from rl_operator.drivers.control import read_control
from rl_serve.arguments import PolicyRef, parse_arguments
from rl_serve.catalog import Listed
from rl_serve.control import Control
from rl_serve.faults import passes
from rl_serve.status import ReplicaReport
from rl_serve.window import Answered, Window

TOKEN = "the-operators-token"
MOST_BYTES = 48 * 2**10
SECONDS = 30.0


def policy(number: int) -> dict[str, str]:
    return {"source": f"/run/step-{number}", "digest": f"{number:064x}", "version": f"v{number}"}


async def forever(*_: object) -> Any:
    await asyncio.Event().wait()


@pytest.fixture
def control(tmp_path: Path) -> Control:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "probe.jsonl").write_text('{"prompt": "2+2=", "answer": "4"}\n')
    arguments = {
        "service": "svc",
        "model": "m",
        "source": {"run": "r", "folder": str(tmp_path / "run")},
        "controlTokenFile": str(tmp_path / "token"),
        "probe": {"file": str(tmp_path / "probe.jsonl")},
    }
    return Control(parse_arguments(arguments), tmp_path / "cache", "rltrain", "policy")


async def ask(control: Control, path: str, body: Any = None) -> tuple[int, Any, int]:
    """Status, the object, and its bytes."""
    content = json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    scope = {
        "type": "http",
        "method": "GET" if body is None else "POST",
        "path": f"/{path}",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
    }
    response = await control(HttpRequest(scope, receive))
    return response.status_code, json.loads(bytes(response.body)), len(bytes(response.body))


def report(
    name: str, version: str | None, error: str | None = None, answered: int = 0, **more: Any
) -> ReplicaReport:
    window = Window()
    for _ in range(answered):
        window.note(Answered(version or "", 200, 4, 8, 0.5, 0.1), time.time())
    return ReplicaReport(name, version, None, error, window.slices(time.time()), **more)


async def evaluated(control: Control, number: int, serving: int | None = 1, **gate: Any) -> Any:
    body = {
        "candidate": policy(number),
        "serving": None if serving is None else policy(serving),
        "gate": gate or {"probe": {"maxDrop": 0.0}},
    }
    code, said, _ = await ask(control, "evaluate", body)
    assert code == 202, said
    return said


async def told(control: Control, number: int) -> dict[str, Any]:
    """What the status has of a candidate, once it is measured."""
    await evaluated(control, number)
    task = control._trials.evaluations[policy(number)["digest"]].task
    assert task is not None
    await task
    _, said, _ = await ask(control, "status")
    return dict(said["evaluations"][policy(number)["digest"]])


@pytest.mark.no_cover  # long, and other tests run these lines
def test_the_last_candidates_and_what_serves_are_in_a_status_that_stays_short(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measure(candidate: Any, serving: Any, gate: Any) -> dict[str, Any]:
        if candidate.version == "v300":
            await forever()
        return {"passed": True, "message": "é" * 5000, "probe": {"candidate": 1.0}}

    monkeypatch.setattr(control._trials, "_measure", measure)
    listed = [Listed(step, f"{step:064x}", f"s3://bucket/{'x' * 860}/{step}") for step in range(10)]
    monkeypatch.setattr(control, "_look", lambda: (listed, "é" * 5000))

    async def work() -> None:
        for number in range(1, 301):
            await control.report(report(f"old-{number % 50}", f"v{number}", answered=1))
            control._trials.probes[f"v{number}"] = {"score": 1.0, "n": 12}
            await evaluated(control, number)
            if number < 300:
                task = control._trials.evaluations[policy(number)["digest"]].task
                assert task is not None
                await task
            if number == 1:
                whole = await evaluated(control, 1)
                assert whole["report"]["probe"] == {"candidate": 1.0}
            control._replicas._said.pop(f"old-{number % 50}")
            await control.report(report("a", "v1", answered=1))
            code, said, size = await ask(control, "status")
            assert (code, size < MOST_BYTES) == (200, True), size
        assert "report" not in said["evaluations"][policy(300)["digest"]]
        assert set(said["evaluations"]) == {policy(number)["digest"] for number in (1, 297, 298, 299, 300)}
        assert said["evaluations"][policy(300)["digest"]]["state"] == "running"
        assert next(iter(said["versions"])) == "v1"
        assert {"v300", "v299"} < said["versions"].keys()
        assert said["versions"]["v1"]["probe"] == {"score": 1.0, "n": 12}
        assert len(said["versions"]) == 5

    run_async(work, SECONDS)


def test_what_waits_to_be_measured_is_given_up_when_many_others_are(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control._trials, "_measure", forever)

    async def work() -> None:
        for number in range(1, 101):
            await evaluated(control, number)
            await asyncio.sleep(0)
        waiting = control._trials.evaluations[policy(50)["digest"]].task
        _, said, _ = await ask(control, "status")
        # The one that is measured, and the last ones.
        left = {policy(number)["digest"] for number in (1, 97, 98, 99, 100)}
        assert set(said["evaluations"]) == left
        assert waiting is not None
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    run_async(work, SECONDS)


def test_what_was_found_in_other_circumstances_is_measured_again(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, str | None, Any]] = []

    async def measure(candidate: Any, serving: Any, gate: Any) -> dict[str, Any]:
        measured.append((candidate.version, serving and serving.version, gate))
        return {"passed": True, "message": f"number {len(measured)}"}

    monkeypatch.setattr(control._trials, "_measure", measure)

    async def asked(times: int, serving: int | None = 1, **gate: Any) -> dict[str, Any]:
        await evaluated(control, 7, serving, **gate)
        task = control._trials.evaluations[policy(7)["digest"]].task
        assert task is not None
        await task
        assert len(measured) == times
        _, said, _ = await ask(control, "status")
        return dict(said["evaluations"][policy(7)["digest"]])

    async def work() -> None:
        first = await asked(1)
        assert await asked(1) == first
        assert (first["serving"], first["gate"]) == (policy(1)["digest"], {"probe": {"maxDrop": 0.0}})
        assert (await asked(2, serving=2))["serving"] == policy(2)["digest"]
        assert (await asked(3, serving=None))["serving"] is None
        stricter = await asked(4, serving=None, probe={"maxDrop": 0.0, "minScore": 0.5})
        assert stricter["gate"] == {"probe": {"maxDrop": 0.0, "minScore": 0.5}}
        (tmp_path / "probe.jsonl").write_text('{"prompt": "2+2=", "answer": "5"}\n')
        again = await asked(5, serving=None, probe={"maxDrop": 0.0, "minScore": 0.5})
        assert again["message"] == "number 5"

    run_async(work, SECONDS)


@pytest.mark.parametrize(
    ("error", "state", "retryable"),
    [
        (CheckpointError("model.safetensors does not match its checksum"), "failed", False),
        (ModelError("config.json has no model_type"), "failed", False),
        (Unavailable("the bucket does not answer"), "error", True),
        (OSError(28, "No space left on device"), "error", True),
    ],
)
def test_a_verdict_about_the_candidate_and_a_fault_of_its_place_are_told_apart(
    control: Control, monkeypatch: pytest.MonkeyPatch, error: Exception, state: str, retryable: bool
) -> None:
    def folder(policy: PolicyRef) -> Path:
        raise error

    monkeypatch.setattr(control._shelf, "folder", folder)

    async def work() -> None:
        found = await told(control, 7)
        assert (found["state"], found["retryable"]) == (state, retryable)
        fetched = (await control.fetch(PolicyRef(**policy(7)))).error
        assert passes(fetched) == retryable
        assert type(fetched) is (Unavailable if retryable else type(error))

    run_async(work, SECONDS)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (CheckpointError("the serving policy is damaged"), True),
        (DeadlineExceeded("it took too long"), True),
        (WorkerCrashedError(), True),
        (InvalidConfig("held-out prompts: the run has no task.evaluation"), False),
        (TaskError("the task cannot be loaded"), False),
    ],
)
def test_what_cannot_be_measured_is_no_verdict_and_is_tried_again_when_it_is_asked_for(
    control: Control, monkeypatch: pytest.MonkeyPatch, error: Exception, retryable: bool
) -> None:
    async def measure(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(control._trials, "_measure", measure)
    monkeypatch.setattr("rl_serve.trials._AGAIN_SECONDS", 0.0)

    async def work() -> None:
        found = await told(control, 7)
        assert (found["state"], found["retryable"]) == ("error", retryable)

        async def passed(*_: Any) -> dict[str, Any]:
            return {"passed": True, "message": "good"}

        monkeypatch.setattr(control._trials, "_measure", passed)
        assert (await told(control, 7))["state"] == "passed"

    run_async(work, SECONDS)


@pytest.mark.no_cover  # long, and other tests run these lines
def test_a_thousand_copies_are_counted_and_a_few_are_named(control: Control) -> None:
    now = time.time()
    control._replicas._clock = lambda: now  # none falls silent, however long it takes to hear them all

    async def work() -> None:
        for number in range(1000):
            await control.report(report(f"r{number:04}", "v1"))
        await control.report(report("r0500", "v2"))
        await control.report(report("r0501", None, "é" * 5000))
        _, said, size = await ask(control, "status")
        assert [one["id"] for one in said["replicas"]] == [f"r{number:04}" for number in range(16)]
        counted = [(one["version"], one["count"], bool(one["error"])) for one in said["copies"]]
        assert counted == [("v1", 998, False), ("v2", 1, False), (None, 1, True)]
        found = read_control(said, "c", "r", datetime.now(UTC)).replicas
        assert sum(one.version == "v1" for one in found) == 998
        assert (len(found), size < MOST_BYTES) == (1000, True)
        # All are of another kind, and as long as may be: none is forgotten, and none serves what it does not.
        for number in range(1000):
            await control.report(report(f"r{number:04}", f"v{number:0252}", "é" * 5000))
        _, said, size = await ask(control, "status")
        assert sum(one["count"] for one in said["copies"]) == 1000
        left = {"version": None, "loading": None, "error": None, "retryable": False, "count": 992}
        assert said["copies"][-1] == left
        assert size < MOST_BYTES

    run_async(work, SECONDS)


def test_versions_of_many_copies_are_cut_and_what_serves_is_not(control: Control) -> None:
    async def work() -> None:
        for number in range(200):
            await control.report(report(f"old-{number}", f"a{number}", answered=1))
        control._replicas._clock = lambda: time.time() + 60
        for number in range(3):
            await control.report(report(f"r{number}", "zz", answered=1))
        _, said, size = await ask(control, "status")
        assert next(iter(said["versions"])) == "zz"
        assert (len(said["versions"]), size < MOST_BYTES) == (8, True)

    run_async(work, SECONDS)
