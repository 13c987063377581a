"""Ray's own dashboard beside a run (`rltrain run --dashboard`)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from training_runs import RunFiles, rltrain, until

ACTORS = {"BufferActor", "LearnerActor", "SamplerActor"}


def fetched(url: str, token: str = "") -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        assert answer.status == 200
        found: bytes = answer.read()
    return found


def classes(url: str, token: str) -> set[str]:
    """Of the actors that the dashboard shows."""
    shown: dict[str, Any] = json.loads(fetched(f"{url}/logical/actors", token))["data"]["actors"]
    return {str(actor["actorClass"]).rpartition(".")[2] for actor in shown.values()}


def test_the_dashboard_shows_the_actors_of_a_run_and_ends_with_it(tmp_path: Path):
    files = RunFiles(tmp_path, stop={"maxSteps": 100_000})
    files.feel(delay=0.01)
    with files.start("--dashboard") as process:
        said = tmp_path / "stdout.txt"
        process.wait_for(lambda: "\nstatus at " in said.read_text())
        where = re.search(r"^Ray's dashboard at (http://\S+)(.*)$", said.read_text(), re.MULTILINE)
        assert where
        url, token = where[1], ""
        assert b"<title>Ray Dashboard</title>" in fetched(url)
        if where[2]:
            assert "`ray get-auth-token`" in where[2]
            command = [sys.executable, "-m", "ray.scripts.scripts", "get-auth-token"]
            token = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=True
            ).stdout.strip()
        until(lambda: classes(url, token) >= ACTORS)
        process.wait_for(lambda: len(files.steps) >= 3)
        process.send(signal.SIGINT)
        outcome = process.finish()
    assert outcome.code == 130
    assert "checkpoint written" in outcome.sentence
    with pytest.raises(urllib.error.URLError):
        fetched(url)


@pytest.mark.usefixtures("local_ray")
def test_a_ray_without_a_dashboard_is_said_to_have_none(tmp_path: Path):
    outcome = RunFiles(tmp_path, stop={"maxSteps": 1}).run("--dashboard").assert_well()
    assert "--dashboard: the Ray that this run has joined has none" in outcome.out


def test_a_program_has_no_dashboard(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "{apiVersion: rltrain.dev/v1alpha1, kind: RLTrainingRun, metadata: {name: other}, "
        "spec: {trainer: {kind: command, command: [sleep, '60']}}}"
    )
    outcome = rltrain("run", str(file), "--dashboard")
    assert outcome.code == 2
    assert outcome.sentence.startswith("--dashboard: found with trainer.kind command"), outcome.sentence
