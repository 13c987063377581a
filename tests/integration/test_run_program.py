"""Runs of `trainer.kind: command`: a program in a process of its own, its progress, its end, and going on after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from training_runs import until

from rl_trainer.observe.metrics import read_events, read_metrics

ROOT = Path(__file__).parents[2]
PATIENCE = 280.0
# A program with a checkpoint (a number in a file), which stops well when it is told to.
PROGRAM = """
import json, os, signal, sys, time
spec = json.load(open(os.environ["RLTRAIN_CONFIG"]))["spec"]
settings = spec["trainer"]["config"] or {}
place = os.path.join(os.environ["RLTRAIN_CHECKPOINTS"], "step")
stopping = []
if not settings.get("loads"):
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
def say(**line):
    with open(os.environ["RLTRAIN_METRICS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
step = int(open(place).read()) if os.environ["RLTRAIN_RESUME"] == "1" else 0
if step and settings.get("loads"):
    time.sleep(1000)
if step:
    say(event="evaluation", step=step, score=0.5)
print("begins at", step, "speed", os.environ.get("SPEED"))
while step < int(os.environ["RLTRAIN_MAX_STEPS"]) and not stopping:
    step += 1
    say(step=step, reward_mean=step / 10, unknown="x")
    if step == settings.get("saveAt"):
        open(place, "w").write(str(step))
    if step % settings.get("saveEvery", 1 << 30) == 0:
        open(place, "w").write(str(step))
        say(event="checkpoint", step=step, path=place)
    if step == settings.get("killAt"):
        os.kill(os.getppid(), signal.SIGKILL)
        say(event="checkpoint", step=step, path=place)
        sys.exit()
    if step == settings.get("failAt"):
        print("cannot go on:", "no more letters", file=sys.stderr)
        sys.exit(7)
    time.sleep(settings.get("delay", 0.0))
if not settings.get("forgetful"):
    open(place, "w").write(str(step))
    say(event="checkpoint", step=step, path=place)
say(event="evaluation", step=step, score=0.75)
"""


@dataclass
class Folder:
    """A run file with its program."""

    path: Path
    spec: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.path / "train.py").write_text(PROGRAM)
        self.configure()

    def configure(self, *, steps: int = 5, command: list[str] | None = None, **settings: Any) -> None:
        trainer: dict[str, Any] = {"kind": "command", "command": command or [sys.executable, "train.py"]}
        trainer |= {"config": settings, "env": [{"name": "SPEED", "value": "fast"}]}
        document = {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingRun",
            "metadata": {"name": "mine"},
            "spec": {"trainer": trainer, "stop": {"maxSteps": steps}, **self.spec},
        }
        (self.path / "run.yaml").write_text(yaml.safe_dump(document))

    @property
    def out(self) -> Path:
        return self.path / "out"

    @property
    def steps(self) -> list[int]:
        return [record.step for record in read_metrics(self.out / "metrics.jsonl")]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rl_trainer.cli", "run", str(self.path / "run.yaml")]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RLTRAIN_")}
        return subprocess.Popen(
            [*command, "--out", str(self.out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | environment,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, error = process.communicate(timeout=PATIENCE)
        return process.returncode, out, error


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)


def test_progress_summary_and_report(folder: Folder) -> None:
    code, out, error = folder.run()
    assert (code, error) == (0, "")
    assert "begins at 0 speed fast" in out
    assert "step 5/5  reward 0.50" in out
    assert "The program is done after 5 steps" in out
    assert folder.steps == [1, 2, 3, 4, 5]
    summary = json.loads((folder.out / "summary.json").read_text())
    assert (summary["stop_reason"], summary["steps"], summary["heldout_end"]) == ("programEnded", 5, 0.75)
    assert summary["reward_curve"] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert "0.75" in (folder.out / "report.html").read_text()
    assert "begins at 0" in (folder.out / "program.log").read_text()


def test_a_program_that_fails_says_why(folder: Folder) -> None:
    folder.configure(failAt=3)
    code, _, error = folder.run()
    assert code == 1
    assert error.startswith("rltrain: trainer.command: ")
    assert "ended with exit code 7; its last lines: " in error
    assert error.strip().endswith("cannot go on: no more letters")
    assert folder.steps == [1, 2, 3]


def test_a_program_that_cannot_be_started(folder: Folder) -> None:
    folder.configure(command=["no-such-program"])
    code, _, error = folder.run()
    assert code == 2
    assert "spec.trainer.command: found 'no-such-program'" in error
    assert "No such file" in error


def test_a_signal_stops_it_and_the_next_attempt_goes_on(folder: Folder) -> None:
    folder.configure(steps=1000, delay=0.05)
    process = folder.start()
    wait_for(lambda: len(folder.steps) >= 3, process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, error
    kept = int((folder.out / "checkpoints" / "step").read_text())
    assert f"stopped at step {kept} of 1000" in error
    assert folder.steps == list(range(1, kept + 1))

    folder.configure(steps=kept + 2)
    code, out, error = folder.run("--resume")
    assert code == 0, error
    assert f"begins at {kept}" in out
    assert folder.steps == list(range(1, kept + 3))
    assert [event["step"] for event in read_events(folder.out / "metrics.jsonl", "resumed")] == [kept]


def test_steps_after_the_last_checkpoint_are_not_listed_twice(folder: Folder) -> None:
    folder.configure(saveAt=2, failAt=4)
    assert folder.run()[0] == 1
    assert folder.steps == [1, 2, 3, 4]
    folder.configure(steps=6)
    code, _, error = folder.run()
    assert (code, "holds an earlier run" in error) == (2, True)
    code, out, _ = folder.run("--resume")
    assert (code, "begins at 2" in out) == (0, True)
    assert folder.steps == [1, 2, 3, 4, 5, 6]
    assert [event["step"] for event in read_events(folder.out / "metrics.jsonl", "resumed")] == [2]
    assert [event["step"] for event in read_events(folder.out / "metrics.jsonl", "evaluation")] == [2, 6]


def test_what_a_program_said_when_rltrain_was_killed_is_not_lost(folder: Folder) -> None:
    metrics, lines = folder.out / "metrics.jsonl", folder.out / "program.jsonl"
    for kill_at in (4, 7):
        folder.configure(steps=9, saveAt=kill_at, killAt=kill_at)
        code, _, error = folder.run(*(["--resume"] if kill_at > 4 else []))
        assert code == -signal.SIGKILL, error
        # The program ends later than rltrain: its last line is there before the next attempt reads what there is.
        until(lambda: '"event": "checkpoint"' in lines.read_text(), PATIENCE)
    folder.configure(steps=9)
    code, out, _ = folder.run("--resume")
    assert (code, "begins at 7" in out) == (0, True)
    assert folder.steps == list(range(1, 10))
    assert [event["step"] for event in read_events(metrics, "checkpoint")] == [4, 7, 9]
    assert [event["step"] for event in read_events(metrics, "evaluation")] == [4, 7, 9]
    assert [event["step"] for event in read_events(metrics, "resumed")] == [4, 7]
    assert json.loads((folder.out / "summary.json").read_text())["resumed_from"] == 7


def test_a_program_whose_rltrain_was_killed_does_not_train_on(folder: Folder) -> None:
    folder.configure(steps=100_000, delay=0.05)
    process = folder.start()
    wait_for(lambda: len(folder.steps) >= 3, process)
    process.kill()
    process.wait(PATIENCE)
    saved, deadline = folder.out / "checkpoints" / "step", time.monotonic() + PATIENCE
    while not (saved.exists() and saved.read_text()):  # it was told to stop, and did so as ever
        assert time.monotonic() < deadline, "it trains on"
        time.sleep(0.05)
    kept = int(saved.read_text())
    folder.configure(steps=kept + 2)
    code, out, error = folder.run("--resume")
    assert (code, f"begins at {kept}" in out) == (0, True), error
    assert folder.steps == list(range(1, kept + 3))


def asking(process: subprocess.Popen[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Asks the driver as the operator does: a path, and with data a POST; HTTP status and answer."""
    assert process.stdout is not None
    url = next(line for line in process.stdout if line.startswith("status at ")).split()[-1]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str, data: bytes | None = None) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            url.removesuffix("/status") + path, data, {"Authorization": "Bearer secret"}
        )
        try:
            with opener.open(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    return ask


@pytest.mark.parametrize("forgetful", [False, True])
def test_who_asks_for_a_checkpoint_stops_it(folder: Folder, forgetful: bool) -> None:
    # Those that it writes by itself are no answer: what it stops with is newer.
    every = {} if forgetful else {"saveEvery": 1}
    folder.configure(steps=1000, delay=0.05, forgetful=forgetful, **every)
    process = folder.start(RLTRAIN_STATUS_TOKEN="secret")
    ask = asking(process)
    wait_for(lambda: len(folder.steps) >= 3, process)

    status = ask("/status")[1]
    assert status["phase"] == "Training"
    assert status["reward"] == pytest.approx(status["step"] / 10, abs=1e-3)
    assert (status["maxSteps"], status["bufferFill"]) == (1000, None)
    code, answer = ask("/checkpoint", b"{}")
    if forgetful:
        assert code == 409
        assert "told of no checkpoint" in answer["error"]
    else:
        kept = int((folder.out / "checkpoints" / "step").read_text())
        assert (code, answer["checkpoint"]["step"]) == (200, kept)
    assert ask("/status")[1]["phase"] == "Stopping"
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None:  # as an operator does: until the last status was read it stays
        assert time.monotonic() < deadline, "it takes too long"
        with contextlib.suppress(OSError):
            ask("/status")
        time.sleep(0.05)
    process.communicate()
    assert process.returncode == 143


def test_where_a_program_goes_on_is_known_before_it_says_so(folder: Folder) -> None:
    """Of the attempt before nobody may have read it, and this one may be stopped while it still loads."""
    assert folder.run()[0] == 0
    folder.configure(steps=10, loads=True)
    process = folder.start("--resume", RLTRAIN_STATUS_TOKEN="secret")
    ask, status = asking(process), {"phase": "Starting"}
    while status["phase"] != "Training":
        status = ask("/status")[1]
        assert process.poll() is None, process.communicate()
    assert status["checkpoint"]["step"] == 5
    code, answer = ask("/checkpoint", b"{}")
    assert (code, answer["checkpoint"]) == (200, status["checkpoint"])
    process.kill()
    process.communicate()


def test_a_program_with_nothing_left_to_do_shows_what_was_reached(folder: Folder) -> None:
    assert folder.run()[0] == 0
    process = folder.start("--resume", RLTRAIN_STATUS_TOKEN="secret")
    ask, status = asking(process), {"phase": "Starting"}
    while status["phase"] != "Succeeded":  # it stays until its last status was read
        status = ask("/status")[1]
        assert status["step"] == 5
    assert process.wait(PATIENCE) == 0
    process.communicate()


def test_the_time_of_all_attempts_is_bounded(folder: Folder) -> None:
    folder.spec = {"stop": {"maxSteps": 1000, "maxDuration": "1s"}}
    folder.configure(delay=0.05)
    code, out, error = folder.run()
    assert code == 0, error
    assert "stop.maxDuration is over" in out
    assert json.loads((folder.out / "summary.json").read_text())["stop_reason"] == "maxDuration"


def test_the_example_in_short(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rl_trainer.cli", "run", str(ROOT / "examples" / "command.yaml")]
    more = ["--out", str(tmp_path / "out"), "--set", "stop.maxSteps=100"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        [*command, *more],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env=os.environ | {"PATH": path},
    )
    assert ended.returncode == 0, ended.stderr
    rewards = [record.reward_mean for record in read_metrics(tmp_path / "out" / "metrics.jsonl")]
    assert len(rewards) == 100
    assert rewards[-1] > 0.8 > 0.2 > rewards[0]
    assert (tmp_path / "out" / "checkpoints" / "newest.pt").exists()
