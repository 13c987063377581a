"""Runs that are stopped from outside, and what they say meanwhile: each in a process of its own, with a Ray of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from training_runs import PROMPTS, REWARD_RULE, Outcome, Process, RunFiles

ENDLESS = {"maxSteps": 10_000}
HINT = "add --resume to the same command to go on from the last checkpoint"


@pytest.fixture
def endless(tmp_path: Path) -> RunFiles:
    """A run that does not end by itself, with some 10 steps a second."""
    files = RunFiles(tmp_path, stop=ENDLESS)
    files.feel(delay=0.01)
    return files


def started(files: RunFiles, steps: int = 3) -> Process:
    process = files.start()
    process.wait_for(lambda: len(files.steps) >= steps)
    return process


def test_a_run_from_standard_input_is_quiet_and_succeeds(tmp_path: Path):
    files = RunFiles(tmp_path, task={"evaluation": {"everySteps": 2, "samples": 4}})
    command = [
        sys.executable,
        "-m",
        "rl_trainer.cli",
        "run",
        "-",
        "--out",
        str(files.out),
        "--set",
        "stop.maxSteps=3",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ended = subprocess.run(
        command,
        input=files.file.read_text(),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=240,
    )
    Outcome(ended.returncode, ended.stdout, ended.stderr).assert_well()
    words = [line.split()[0] for line in ended.stdout.splitlines()]
    ours = {"starting", "reserving", "status", "evaluating", "training", "step", "All"}
    assert set(words) <= ours | {"held-out", "reward", "speed", "groups", "report"}, ended.stdout
    assert "step 3/3" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert "All steps done after 3 steps" in ended.stdout


def test_sigterm_finishes_the_step_and_writes_a_checkpoint(endless: RunFiles):
    with started(endless) as process:
        process.send(signal.SIGTERM)
        outcome = process.finish(240)
    done = len(endless.steps)
    assert outcome.code == 143
    assert outcome.sentence == f"stopped at step {done} of 10000, checkpoint written; {HINT}"
    assert "SIGTERM: stopping after this step, with a checkpoint" in outcome.out
    assert endless.checkpoints[-1] == done
    endless.assert_nothing_lost_or_twice()


def test_ctrl_c_in_a_terminal_shows_the_view_and_leaves_the_terminal_as_it_was(endless: RunFiles):
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command = [sys.executable, "-c", spawn, sys.executable, "-m", "rl_trainer.cli", *endless.arguments()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    seen = endless.folder / "seen"  # no pipe: the view would fill it while nobody reads, and then wait
    with seen.open("wb") as output:
        terminal = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment | {"TERM": "xterm-256color", "COLUMNS": "90"},
            start_new_session=True,
        )
    assert terminal.stdin is not None
    deadline = time.monotonic() + 400
    try:
        while len(endless.steps) < 3:
            assert terminal.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        terminal.stdin.write(b"\x03")
        terminal.stdin.flush()
        terminal.communicate(timeout=240)
        shown = seen.read_bytes().decode()
    finally:
        terminal.kill()
    assert terminal.returncode == 130
    assert "reward" in shown
    assert "\x1b[?25l" in shown, "the live view hides the cursor"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "and shows it again"
    done = len(endless.steps)
    assert "SIGINT: stopping after this step, with a checkpoint (Ctrl-C again stops at once)" in shown
    assert f"rltrain: stopped at step {done} of 10000, checkpoint written; {HINT}" in shown
    assert "Traceback" not in shown
    assert endless.checkpoints[-1] == done


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path):
    files = RunFiles(tmp_path, task={"rewards": [REWARD_RULE | {"timeout": "1h"}]}, stop=ENDLESS)
    files.feel({PROMPTS: "holdFirst"})  # the second step does not end
    with started(files, steps=1) as process:
        process.send_to_group(signal.SIGINT)
        process.wait_for(lambda: "SIGINT: stopping" in process.outcome().out)
        process.send_to_group(signal.SIGINT)
        outcome = process.finish(240)
    assert outcome.code == 130
    assert outcome.sentence == f"stopped at once; {HINT}"


def test_sigterm_to_the_group_leaves_ray_to_the_step_at_hand(endless: RunFiles):
    """As `timeout` and a terminal that is closed send it."""
    with started(endless, steps=5) as process:
        process.send_to_group(signal.SIGTERM)
        outcome = process.finish(240)
    assert outcome.code == 143, outcome.err
    done = len(endless.steps)
    assert outcome.sentence == f"stopped at step {done} of 10000, checkpoint written; {HINT}"
    assert endless.checkpoints[-1] == done
    endless.feel()
    endless.run("--resume", "--set", f"stop.maxSteps={endless.checkpoints[-1] + 2}").assert_well()
    endless.assert_nothing_lost_or_twice()


# Until a model has been warmed up a run is at its start: one that is not over however late a signal comes.
LONG_START = {"maxSteps": 1_000_000, "batchSize": 8}


def test_a_signal_during_the_start_ends_it(tmp_path: Path):
    files = RunFiles(tmp_path, warmStart=LONG_START)
    with files.start() as process:
        process.wait_for(lambda: "starting Ray" in process.outcome().out)
        process.send_to_group(signal.SIGINT)
        outcome = process.finish(240)
    assert outcome.code == 130
    assert outcome.sentence == f"stopped at once; {HINT}"


def test_a_signal_ends_the_start_although_ray_does_not_answer(tmp_path: Path):
    """Python does not hear of it: its main thread waits in Ray's C++ for a server that stands still."""
    files = RunFiles(tmp_path, warmStart=LONG_START)
    with files.start() as process:
        driver = psutil.Process(process.process.pid)

        def still() -> bool:
            children = {}
            for child in driver.children():
                with contextlib.suppress(psutil.NoSuchProcess):  # others come and go meanwhile
                    children[child.name()] = child
            if "raylet" in children:  # so the other has told where it listens
                children["gcs_server"].suspend()
            return "raylet" in children

        process.wait_for(still)
        left = driver.children(recursive=True)
        process.send(signal.SIGTERM)
        process.process.wait(50)  # sooner than Ray gives its server up by itself
        gone, alive = psutil.wait_procs(left, timeout=120)
        outcome = process.finish()
    assert outcome.code == 143
    assert outcome.sentence == f"stopped at once; {HINT}"
    assert len(gone) >= 2
    assert alive == []
