"""What a person can get wrong with `rltrain run`: each is one sentence with what to do; nothing that exists is touched."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from training_runs import Process, RunFiles, rltrain

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("spec.sampler.replicaz=2", ["sampler.replicaz", "unknown field", "did you mean replicas"]),
        ("algorithm.groupSize=many", ["spec.algorithm.groupSize", "'many'", "whole number"]),
        ("algorithm.groupSize=1", ["spec.algorithm.groupSize", "found 1", ">= 2"]),
        ("buffer.capacity=3", ["spec.buffer.capacity", "found 3", "promptsPerStep"]),
        ("model.source=nowhere/models/qwen", ["nowhere/models/qwen"]),
        ("sampler.engine=vllm", ["spec.sampler.engine", "found vllm", "not installed", "torch"]),
        ("sampler.tensorParallelSize=2", ["spec.sampler.tensorParallelSize", "found 2", "can run 1"]),
        ("sampler.stop=[abc]", ["spec.sampler.stop", "'abc' is 3 tokens", "one token"]),
        ("task.file=nothing.jsonl", ["nothing.jsonl", "beside the run file"]),
        ("task.rewards=[{rule: function, function: moody_reward:prize}]", ["moody_reward", "prize"]),
        ("algorithm.name=gprs", ["spec.algorithm.name", "'gprs'", "grpo", "module:function"]),
        ("algorithm.name=moody_reward:loss", ["algorithm.name", "moody_reward has no 'loss'"]),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_made(tmp_path: Path, override: str, parts: Sequence[str]):
    files = RunFiles(tmp_path)
    outcome = files.run("--set", override)
    assert outcome.code == 2, outcome
    for part in parts:
        assert part in outcome.sentence
    assert not (files.out / "metrics.jsonl").exists()


def test_an_unknown_generator_of_reasoning_gym(tmp_path: Path):
    files = RunFiles(tmp_path, task={"environment": "reasoning-gym", "name": "chain_sums", "file": None})
    outcome = files.run()
    assert outcome.code == 2, outcome
    assert "chain_sums" in outcome.sentence
    assert "chain_sum" in outcome.sentence.replace("chain_sums", "")


def test_a_model_folder_with_half_a_file_says_which(tmp_path: Path):
    files = RunFiles(tmp_path / "good", stop={"maxSteps": 1})
    files.run().assert_well()
    model = files.out / "final" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1000])
    other = RunFiles(tmp_path / "other", model={"source": str(files.out / "final")})
    other.file.write_text("\n".join(_without_tiny(other.file.read_text().splitlines())))
    outcome = other.run()
    assert outcome.code == 2, outcome
    assert "model.safetensors" in outcome.sentence
    (files.out / "final" / "config.json").unlink()
    outcome = other.run()
    assert outcome.code == 2, outcome
    assert "config.json" in outcome.sentence


def _without_tiny(lines: list[str]) -> list[str]:
    start = next(number for number, line in enumerate(lines) if line.strip() == "tiny:")
    depth = len(lines[start]) - len(lines[start].lstrip())
    end = next(
        number
        for number, line in enumerate(lines)
        if number > start and len(line) - len(line.lstrip()) <= depth
    )
    return lines[:start] + lines[end:]


def test_two_runs_in_one_folder(tmp_path: Path):
    files = RunFiles(tmp_path, stop={"maxSteps": 10_000})
    with Process(files.arguments(), tmp_path, {}) as process:
        process.wait_for(lambda: (files.out / ".lock").exists() and (files.out / ".lock").read_text() != "")
        for option in ("--resume", "--overwrite"):
            outcome = files.run(option)
            assert outcome.code == 2, outcome
            assert f"process {process.process.pid} is training in this run folder" in outcome.sentence
            assert "choose another --out or stop it first" in outcome.sentence


def test_an_earlier_run_is_not_overwritten_unasked(tmp_path: Path):
    files = RunFiles(tmp_path, stop={"maxSteps": 1})
    files.run().assert_well()
    kept = (files.out / "metrics.jsonl").read_bytes()
    outcome = files.run()
    assert outcome.code == 2, outcome
    for part in ("holds an earlier run", "--resume", "--overwrite", "another --out"):
        assert part in outcome.sentence
    assert (files.out / "metrics.jsonl").read_bytes() == kept


def test_resume_and_overwrite_together(tmp_path: Path):
    outcome = RunFiles(tmp_path).run("--resume", "--overwrite")
    assert (outcome.code, outcome.sentence) == (
        2,
        "--resume and --overwrite: found both, allowed is one of them",
    )


def test_a_port_that_is_taken(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = RunFiles(tmp_path).run("--set", f"server.port={port}")
    assert outcome.code == 2, outcome
    assert f"port {port} is taken" in outcome.sentence
    assert "spec.server.port" in outcome.sentence


def test_a_resumed_run_must_be_the_same_run(tmp_path: Path):
    files = RunFiles(tmp_path, stop={"maxSteps": 2})
    files.run().assert_well()
    outcome = files.run("--resume", "--set", "seed=9")
    assert outcome.code == 2, outcome
    assert "spec.seed: found 9, but the checkpoint of step 2 was made with 1" in outcome.sentence
    outcome = files.run("--resume", "--set", "task.chatTemplateKwargs={enable_thinking: false}")
    assert outcome.code == 2, outcome
    assert (
        "spec.task.chatTemplateKwargs.enable_thinking: found False, but the checkpoint of step 2 was made with None"
        in outcome.sentence
    )


def test_a_ray_cluster_that_is_not_there(tmp_path: Path):
    with socket.socket() as closed:  # bound and not listening: nobody else gets the port
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with RunFiles(tmp_path).start(RAY_ADDRESS=address) as process:
            outcome = process.finish()
    assert outcome.code == 1, outcome
    assert outcome.sentence.startswith(f"RAY_ADDRESS={address}: no Ray cluster could be joined there")


@pytest.mark.parametrize("address", ["head", "head:port", "http://head:8265"])
def test_an_address_that_is_none(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    outcome = RunFiles(tmp_path).run()
    assert outcome.code == 2, outcome
    assert f"RAY_ADDRESS: found {address}, allowed: host:port" in outcome.sentence


def test_a_file_in_place_of_the_folder(tmp_path: Path):
    (tmp_path / "file").touch()
    outcome = rltrain("run", str(RunFiles(tmp_path).file), "--out", str(tmp_path / "file"))
    assert outcome.code == 1, outcome
    assert "the run folder cannot be written (File exists)" in outcome.sentence


def test_no_file_at_all(tmp_path: Path):
    outcome = rltrain("run", str(tmp_path / "nothing.yaml"))
    assert outcome.code == 2, outcome
    assert "nothing.yaml" in outcome.sentence


def test_the_list_of_commands_is_shown_where_none_is_given():
    outcome = rltrain()
    assert outcome.code == 2
    assert "COMMAND" in outcome.err
