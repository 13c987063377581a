"""Which policy a path means, and that nothing is served which its manifest does not know."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from rl_api.errors import CheckpointError, ModelError
from rl_api.run import TinyModelSpec
from rl_cli.main import main
from rl_serve.policy import find_policy
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.model.presets import write_tiny
from rl_trainer.rollout.engines import vllm_needs


def model(folder: Path, seed: int = 0) -> Path:
    return write_tiny(folder, TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1), seed)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints of steps 10 and 20."""
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    for step in (10, 20):
        store.save(step, {"model": lambda target, step=step: model(target, step)})
    return tmp_path / "run"


def step_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_the_newest_checkpoint_of_a_run(run: Path) -> None:
    told: list[str] = []
    found = find_policy(str(run), run / "cache", told.append)
    digest = CheckpointStore(run / "checkpoints", read_only=True).list()[-1].digest
    assert (found.name, found.version) == ("run", f"step-20-{digest[:8]}")
    assert found.folder == step_folder(run, 20) / "model"
    assert told == [f"verifying {step_folder(run, 20)}"]


def test_a_checkpoint_by_its_folder(run: Path) -> None:
    found = find_policy(str(step_folder(run, 10)), run / "cache")
    assert (found.name, found.version.rpartition("-")[0]) == ("run", "step-10")


def test_an_altered_byte_is_passed_over_in_a_run_and_refused_by_name(run: Path) -> None:
    damage(step_folder(run, 20) / "model" / "model.safetensors")
    told: list[str] = []
    assert find_policy(str(run), run / "cache", told.append).version.startswith("step-10-")
    assert "model/model.safetensors does not match its checksum" in told[-1]
    with pytest.raises(CheckpointError, match="does not match its checksum; take another checkpoint"):
        find_policy(str(step_folder(run, 20)), run / "cache")
    damage(step_folder(run, 10) / "model" / "config.json")
    with pytest.raises(CheckpointError, match="No checkpoint in"):
        find_policy(str(run), run / "cache")


def test_the_final_policy_is_the_step_whose_weights_it_has(run: Path) -> None:
    step = find_policy(str(run), run / "cache").version
    shutil.copytree(step_folder(run, 20) / "model", run / "final", copy_function=shutil.copyfile)
    found = find_policy(str(run), run / "cache")
    assert (found.folder, found.name, found.version) == (run / "final", "run", step)
    shutil.rmtree(run / "final")
    model(run / "final", seed=99)
    assert find_policy(str(run), run / "cache").version.startswith("weights-")
    # Training went on after it: it is not the newest any more.
    os.utime(run / "final" / "config.json", (1, 1))
    assert find_policy(str(run), run / "cache").version == step


def test_a_run_without_checkpoints_has_its_final_policy(tmp_path: Path) -> None:
    model(tmp_path / "run" / "final")
    found = find_policy(str(tmp_path / "run"), tmp_path)
    assert (found.name, found.folder) == ("run", tmp_path / "run" / "final")


def test_a_model_folder_is_named_by_its_bytes(tmp_path: Path) -> None:
    one, other = model(tmp_path / "one", 1), model(tmp_path / "other", 2)
    same = shutil.copytree(one, tmp_path / "same")
    versions = [find_policy(str(folder), tmp_path).version for folder in (one, other, same)]
    assert versions[0] == versions[2] != versions[1]
    assert find_policy(str(one), tmp_path).name == "one"
    assert find_policy("tiny", tmp_path / "cache").name == "tiny"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (
            "empty",
            "empty: found no policy; allowed: a run folder with final or checkpoints, or a model folder",
        ),
        ("empty/missing", "empty/missing: there is no such folder"),
        ("broken", "broken: model.safetensors is missing"),
        ("./missing", "./missing: there is no such folder"),
    ],
)
def test_what_is_no_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        find_policy(path, tmp_path / "cache")
    assert sentence in str(caught.value)
    assert "model.source" not in str(caught.value)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["serve", *words])
    return status, capsys.readouterr().err


def test_the_command_refuses_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    status, sentence = said(capsys, "empty", "--port", "0")
    assert (status, sentence.startswith("rltrain: empty: found no policy")) == (2, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, sentence = said(capsys, "empty", "--port", port)
        assert status == 2
        assert f"--port {port}: cannot be listened at on 127.0.0.1" in sentence
    status, sentence = said(capsys, "empty", "--host", "192.0.2.1")
    assert (status, "--host: found 192.0.2.1, allowed: an address of this machine" in sentence) == (2, True)
    status, sentence = said(capsys, "empty", "--port", "0", "--api-key-file", "none")
    assert (status, "--api-key-file: none cannot be read" in sentence) == (2, True)
    status, sentence = said(capsys, "empty", "--port", "0", "--tensor-parallel-size", "2")
    assert (status, sentence.count("\n")) == (2, 1)
    assert "--tensor-parallel-size, --pipeline-parallel-size: found 2 and 1, allowed: 1 and 1" in sentence
    with monkeypatch.context() as without:
        without.setattr(vllm_needs, "find_spec", lambda name: None)
        status, sentence = said(capsys, "empty", "--port", "0", "--engine", "vllm")
        assert (status, sentence.count("\n")) == (2, 1)
        assert sentence.startswith(
            "rltrain: --engine: found vllm, which is not installed where this command runs; "
        )
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    status, sentence = said(capsys, "empty", "--port", "0")
    assert (status, "RAY_ADDRESS: found auto" in sentence) == (2, True)


def test_without_ray_serve_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import util

    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "fastapi" else found(name))
    assert said(capsys, "runs/quickstart") == (
        1,
        "rltrain: rltrain serve needs the package fastapi, which is not installed: "
        "pip install 'rltrain[trainer,serve]'\n",
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--port", "99999"], "found 99999, allowed: a whole number from 0 to 65535"),
        (["--replicas", "0"], "found 0, allowed: a whole number from 1 to 1024"),
        (["--engine", "sglang"], "'sglang'"),
        (["--tensor-parallel-size", "65"], "found 65, allowed: a whole number from 1 to 64"),
        (["--timeout", "soon"], "found soon, allowed: seconds from 0.1 to 86400"),
    ],
)
def test_options_out_of_range(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "x", *words])
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
