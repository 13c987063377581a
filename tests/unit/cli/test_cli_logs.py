"""Which pods are meant, what is run in them, and how their lines come together."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rl_cli.logs as logs
from rl_cli.execute import outcome, refused
from rl_cli.logs import command_of, merged, one_after_another, split
from rl_cli.pods import name_of, newest, running
from rl_cli.report import is_folder, where_it_is
from rl_operator.model.names import TASK_WORKERS


def pod(name: str, role: str, attempt: str, **more: Any) -> dict[str, Any]:
    labels = {"rltrain.dev/role": role, "rltrain.dev/attempt": attempt}
    return {"metadata": {"name": name, "labels": labels, **more}, "status": {"phase": "Running"}}


def test_the_newest_attempt_counts() -> None:
    pods = [
        pod("b", "sampler", "10"),
        pod("a", "sampler", "10"),
        pod("c", "sampler", "9"),
        pod("h", "head", "11"),
    ]
    assert [name_of(one) for one in newest(pods, "sampler")] == ["a", "b"]
    assert [name_of(one) for one in newest(pods, "head")] == ["h"]
    assert newest(pods, "learner") == []


def test_a_pod_on_its_way_out_runs_no_commands() -> None:
    assert running(pod("a", "head", "1"))
    assert not running(pod("a", "head", "1", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert not running(pod("a", "head", "1") | {"status": {"phase": "Pending"}})


def test_each_role_with_pods_has_logs() -> None:
    parser = argparse.ArgumentParser()
    logs.add_parser(parser.add_subparsers())
    for role in ("head", "sampler", "learner", *TASK_WORKERS):
        assert parser.parse_args(["logs", "sums", "--role", role]).role == role


@pytest.fixture
def ray_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(logs, "_LOGS", str(tmp_path))
    return tmp_path


def output(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout


def test_the_command_finds_the_newest_driver(ray_logs: Path) -> None:
    assert output(command_of("driver", False, None)) == (3, "")
    (ray_logs / "job-driver-old.log").write_text("old\n")
    (ray_logs / "job-driver-new.log").write_text("one\ntwo\nthree\n")
    os.utime(ray_logs / "job-driver-old.log", (1, 1))
    assert output(command_of("driver", False, None)) == (0, "one\ntwo\nthree\n")
    assert output(command_of("driver", False, 1)) == (0, "three\n")


def test_the_command_finds_what_actors_wrote(ray_logs: Path) -> None:
    (ray_logs / "worker-1.out").write_text("")
    (ray_logs / "raylet.out").write_text("not this\n")
    assert output(command_of("sampler", False, None)) == (3, "")
    (ray_logs / "worker-2.err").write_text("Traceback\n")
    assert output(command_of("sampler", False, None)) == (0, "Traceback\n")


def test_following_goes_on(ray_logs: Path) -> None:
    file = ray_logs / "job-driver-1.log"
    file.write_text("one\n")
    process = subprocess.Popen(command_of("driver", True, None), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        with file.open("a") as more:
            more.write("two\n")
        assert process.stdout.readline() == "two\n"
    finally:
        process.kill()
        process.wait(30)


def test_following_waits_for_the_log_to_begin(ray_logs: Path) -> None:
    process = subprocess.Popen(command_of("driver", True, None), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        (ray_logs / "job-driver-1.log").write_text("one\n")
        assert process.stdout.readline() == "one\n"
    finally:
        process.kill()
        process.wait(30)


def test_lines_of_pieces() -> None:
    assert list(split(iter([b"on", b"e\ntwo\n\nthr", b"ee"]))) == [b"one", b"two", b"", b"three"]
    assert list(split(iter([b"one\n"]))) == [b"one"]


def test_several_pods_one_after_another() -> None:
    assert list(one_after_another([("a", iter([b"1"]))])) == [b"1"]
    assert list(one_after_another([("a", iter([b"1"])), ("b", iter([b"2"]))])) == [b"a | 1", b"b | 2"]


def test_several_pods_together() -> None:
    found = list(merged([("a", iter([b"1", b"2"])), ("b", iter([b"3"]))]))
    assert sorted(found) == [b"a | 1", b"a | 2", b"b | 3"]


def test_an_error_of_one_pod_is_raised() -> None:
    def broken() -> Iterator[bytes]:
        yield b"1"
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        list(merged([("a", broken()), ("b", iter(()))]))


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (b'{"status": "Success"}', 0),
        (b'{"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}', 3),
        (b'{"status": "Failure", "message": "container not found"}', -1),
        (b"", -1),
    ],
)
def test_how_a_command_ended(result: bytes, code: int) -> None:
    assert outcome(result)[0] == code


def test_a_refused_connection() -> None:
    body = '{"kind": "Status", "message": "pods \\"x\\" is forbidden", "code": 403}'
    error = refused(
        "/api/v1/namespaces/a/pods/x/exec", f"Handshake status 403 Forbidden -+-+- {{}} -+-+- {body}"
    )
    assert str(error).startswith('not allowed: pods "x" is forbidden')
    assert "does not connect" in str(refused("/api", "odd"))


def test_a_folder_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert is_folder("runs/x")
    assert is_folder(".")
    assert is_folder("here")
    assert not is_folder("arithmetic")


def test_where_a_report_is() -> None:
    run: dict[str, Any] = {"metadata": {"name": "x", "namespace": "a", "uid": "0123456789"}, "spec": {}}
    assert where_it_is(run) == "run x (Pending) has no head pod yet, and so no report"
    run["status"] = {"phase": "Failed", "attempts": [{"number": 1}]}
    assert "its report went with it" in where_it_is(run)
    run["spec"] = {"checkpoint": {"storage": {"persistentVolumeClaim": "claim"}}}
    assert "on PersistentVolumeClaim claim in namespace a, as x-01234567/run;" in where_it_is(run)
