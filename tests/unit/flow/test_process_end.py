"""Processes that must be gone before others have what they held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rl_trainer.flow import process_end
from rl_trainer.flow.process_end import end, started_at


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def started(process: subprocess.Popen[bytes]) -> str:
    found = started_at(process.pid)
    assert found is not None
    return found


def test_a_process_that_is_stopped_has_ended_when_it_is_said(child: subprocess.Popen[bytes]):
    at = started(child)
    os.kill(child.pid, signal.SIGSTOP)
    assert end(child.pid, at, 60.0)
    assert started_at(child.pid) is None, "nobody has asked yet how it ended"
    assert child.wait(0) == -signal.SIGKILL


def test_another_process_of_the_same_number_is_left_alone(child: subprocess.Popen[bytes]):
    assert end(child.pid, "1", 0.0)
    assert child.poll() is None


def test_of_a_process_that_cannot_be_killed_it_is_not_said(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process_end.os, "kill", lambda *_: None)
    assert not end(child.pid, started(child), 0.05)
    monkeypatch.undo()


def test_a_process_that_has_ended_and_was_waited_for_is_none(child: subprocess.Popen[bytes]):
    at = started(child)
    child.kill()
    child.wait(60)
    assert end(child.pid, at, 0.0)
