"""Who may write a run folder: attempts of one run are fenced off from each other, and so are the heads of one attempt."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_api.errors import RunFolderBusy
from rl_trainer.run.attempts_file import note_attempt
from rl_trainer.run.run_folder import RunFolder


def attempt(folder: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder as an attempt on another node sees it: the lock file of this machine says nothing there."""
    monkeypatch.setenv("RLTRAIN_FENCE", token)
    (folder / ".lock").unlink(missing_ok=True)
    return RunFolder(folder, resume=True)


def test_an_attempt_that_was_replaced_writes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with attempt(tmp_path, "8c1f-a/9/p", monkeypatch) as first:
        first.check_owner()
        with attempt(tmp_path, "8c1f-a/10/b", monkeypatch) as second:
            with pytest.raises(
                RunFolderBusy, match=r"8c1f-a/10/b has taken over this run folder from 8c1f-a/9/p"
            ):
                first.check_owner()
            second.check_owner()


def test_an_old_attempt_does_not_take_over_from_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with attempt(tmp_path, "8c1f/10/b", monkeypatch) as second:
        with pytest.raises(RunFolderBusy, match="8c1f/10/b has taken over"):
            attempt(tmp_path, "8c1f/9/p", monkeypatch)
        second.check_owner()


def test_a_head_that_its_queue_replaced_writes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with (
        attempt(tmp_path, "8c1f/2/z", monkeypatch) as first,
        attempt(tmp_path, "8c1f/2/b", monkeypatch) as second,
    ):
        with pytest.raises(RunFolderBusy, match="8c1f/2/b has taken over this run folder from 8c1f/2/z"):
            first.check_owner()
        second.check_owner()


def test_a_head_waits_for_the_one_that_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = attempt(tmp_path, "8c1f/2/z", monkeypatch)
    # On the same node the lock is known, too.
    monkeypatch.setenv("RLTRAIN_FENCE", "8c1f/2/b")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(RunFolder, tmp_path, resume=True)
        with pytest.raises(TimeoutError):
            second.result(0.5)
        first.check_owner()  # it may still write
        first.close()
        with second.result(30) as folder:
            folder.check_owner()


def test_the_wait_for_a_replaced_head_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rl_trainer.run.run_folder._LAST_CHECKPOINT_SECONDS", 0.1)
    with attempt(tmp_path, "8c1f/2/z", monkeypatch):
        monkeypatch.setenv("RLTRAIN_FENCE", "8c1f/2/b")
        with pytest.raises(RunFolderBusy, match=r"process \d+ is training in this run folder"):
            RunFolder(tmp_path, resume=True)


def test_a_second_run_by_hand_in_one_head_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rl_trainer.run.run_folder.time.sleep", lambda seconds: pytest.fail("it waits"))
    with attempt(tmp_path, "8c1f/1/z", monkeypatch), pytest.raises(RunFolderBusy, match="is training"):
        RunFolder(tmp_path, resume=True)


def test_who_finds_the_folder_held_by_a_stopped_process_is_told_so(tmp_path: Path):
    with subprocess.Popen(["sleep", "60"]) as process, RunFolder(tmp_path) as held:
        (tmp_path / ".lock").write_text(str(process.pid))
        (tmp_path / ".owner").write_text(f"{socket.gethostname()}:{process.pid}")
        try:
            with pytest.raises(RunFolderBusy, match="choose another --out or stop it first"):
                RunFolder(tmp_path, resume=True)
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            with pytest.raises(
                RunFolderBusy, match=rf"it is stopped, .* kill -CONT {process.pid} .* --resume"
            ):
                RunFolder(tmp_path, resume=True)
            (tmp_path / ".owner").write_text(f"another-node:{process.pid}")
            with pytest.raises(RunFolderBusy, match="choose another --out or stop it first"):
                RunFolder(tmp_path, resume=True)
        finally:
            process.kill()
        assert held.path == tmp_path.resolve()


def test_the_same_head_and_another_run_may_go_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for token in ("8c1f/2/b", "8c1f/2/b", "77aa/1/b", ""):
        with attempt(tmp_path, token, monkeypatch) as folder:
            folder.check_owner()


def test_a_folder_whose_owner_file_is_gone_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with attempt(tmp_path, "8c1f/2/b", monkeypatch) as folder:
        (tmp_path / ".owner").unlink()
        with pytest.raises(RunFolderBusy, match="another process has taken over"):
            folder.check_owner()


def test_the_folder_says_which_attempts_have_trained_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with attempt(tmp_path, "8c1f/3/p", monkeypatch) as third:
        note_attempt(third.path, "begun", attempt=third.attempt, step=4)
        note_attempt(third.path, "ended", attempt=third.attempt, step=9, reason="LearnerDied")
    monkeypatch.delenv("RLTRAIN_FENCE")
    with RunFolder(tmp_path / "here") as local:
        note_attempt(local.path, "begun", attempt=local.attempt, step=0)
    lines = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    assert [(line["event"], line["attempt"], line["step"], line.get("reason")) for line in lines] == [
        ("begun", 3, 4, None),
        ("ended", 3, 9, "LearnerDied"),
    ]
    assert json.loads((tmp_path / "here" / "attempts.jsonl").read_text())["attempt"] is None
    with RunFolder(tmp_path / "here", overwrite=True):
        assert not (tmp_path / "here" / "attempts.jsonl").exists()
